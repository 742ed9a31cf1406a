/* The application: internal/besteffort. */

inline tell(u, what) {
	d_step {
		if
		:: told[u] == NOTHING ->
			told[u] = what;
			CLAIM(told_delivered_is_applied, what != DELIVERED || applied[u] > 0);
			CLAIM(replayed_is_never_applied, what != TOLD_REPLAYED || applied[u] == 0);
			CLAIM(told_no_is_never_applied, what != TOLD_NO || applied[u] == 0)
		:: else
		fi
	}
}

#define IS_THERE(out) (out == FOUND || out == REPLAYED)
#define AS_FOUND(out) (out == REPLAYED -> TOLD_REPLAYED : DELIVERED)

inline put_all() {
#ifdef HOME
	home = 1;
#endif
	put_entry(0);
#if UNITS > 1
	put_entry(1);
#endif
}

#if UNITS > 1
#define TELL_ALL(what) tell(0, what); tell(1, what); done[0] = 1; done[1] = 1
#define SENDING_ALL(v) sending[0] = v; sending[1] = v
#define ANY_OVER (over[0] || over[1])
#else
#define TELL_ALL(what) tell(0, what); done[0] = 1
#define SENDING_ALL(v) sending[0] = v
#define ANY_OVER over[0]
#endif

/* ---- the application: besteffort.Log ---- */

inline insert_entries(out) {
	atomic {
		sent = 1; inserting = 0;
		if
#ifdef M_STAGED_ONE_BY_ONE
		:: put_entry(0); out = OK
#else
		:: put_all(); out = OK
#endif
		:: faults > 0 -> faults--; out = NO         /* the log is down */
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; put_all(); out = NOANSWER
		:: faults > 0 -> faults--; lateInsert = 1; out = NOANSWER
		fi
	};
#ifdef M_STAGED_ONE_BY_ONE
	if
	:: out == OK -> put_entry(1)
	:: else
	fi;
#endif
	/* Without an answer it is repeated under the same id, until it is known,
	 * while the lease of the first lasts. */
	do
	:: out == NOANSWER ->
		if
#ifdef M_REPEATED_PAST_THE_LEASE
		:: inserting = 1;
#else
		:: atomic { !ANY_OVER -> inserting = 1 };
#endif
			atomic {
				inserting = 0;
				if
				:: put_all(); out = OK; repeated = 1
				:: faults > 0 -> faults--
				fi
			}
		:: true -> break
		fi
	:: else -> break
	od
}

#ifdef M_REMOVAL_BEFORE_THE_ANSWER
#define ANSWERED_BY_THE_LOG (inserted != 0 || sent)
#else
#define ANSWERED_BY_THE_LOG (inserted != 0)
#endif

#ifdef ALONGSIDE
proctype App() {
	byte out;
	{
		atomic { sent = 1; inserting = 1; SENDING_ALL(1); go = 1 };
		insert_entries(out);
		inserted = out
	} unless { dead ->
		atomic {
			if
			:: inserting || !sent -> sent = 1; lateInsert = 1   /* it had left */
			:: skip
			fi;
			inserting = 0
		}
	}
}
#endif

#ifdef HOME
/* Storage.Renew of an entry without a lease: End's, or the renewer's. */
inline take_within(u) {
	log[u].st == WAITING && log[u].token == WRITERS_TOKEN -> log[u].st = WRITER; log[u].doubt = 1; taken[u] = 1; STEP(taken_within)
}

#ifdef M_INSERT_IN_AN_ENDED_TRANSACTION
#define STILL_OPEN true
#else
/* One round trip: the server looks. Two: it has told so in the answer to a statement. */
#define STILL_OPEN (!rolledBack)
#endif
#ifdef M_COMMIT_THOUGH_ROWS_ARE_MISSING
#define ALL_WRITTEN true
#else
#define ALL_WRITTEN (rows == ROWS)
#endif

/* The INSERT of the entry. Outside of a transaction it would be committed at once. */
inline insert_arrives(out) {
	if
	:: !STILL_OPEN -> out = LOST
	:: STILL_OPEN ->
		if
		:: rows = ROWS; out = OK
		:: faults > 0 -> faults--; rows = ROWS - 1; out = OK
		:: faults > 0 -> faults--; out = OK   /* its session sees another log: no row, and no error */
		:: faults > 0 -> faults--; out = LOST /* refused */
		fi;
		if
		:: rolledBack && rows > 0 -> put_entry(0)
		:: else
		fi
	fi
}

/* COMMIT, if the INSERT was answered with all rows. */
inline commit_arrives(out) {
	if
	:: out == OK && ALL_WRITTEN ->
		if
		:: CLAIM(rows_and_entries_commit_together, rows == ROWS); put_all(); out = OK
		:: out = NO
		fi
	:: else -> out = LOST
	fi
}

inline may_be_rolled_back() {
	if
	:: skip
	:: faults > 0 -> faults--; rolledBack = 1
	fi
}

inline both_arrive(out) {
	insert_arrives(out); commit_arrives(out)
}

/* COMMIT of the application's transaction, and the beginning of bedsql's homeEnd. out is LOST if
 * the entry was not written: all is rolled back. */
inline commit(out) {
	if
	:: atomic { /* INSERT and COMMIT in one round trip */
		may_be_rolled_back();
		sent = 1;
		if
		:: both_arrive(out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; both_arrive(out); out = NOANSWER
		:: faults > 0 && !rolledBack -> faults--; lateInsert = 1; out = NOANSWER
		fi;
		rows = 0; rolledBack = 0 }
	:: atomic { /* or in two: an INSERT without an answer is followed by no COMMIT */
		may_be_rolled_back();
		if
		:: insert_arrives(out)
		:: faults > 0 -> faults--; out = LOST
		fi };
		atomic {
		if
		:: out == OK && ALL_WRITTEN -> sent = 1;
			if
			:: commit_arrives(out)
			:: faults > 0 -> faults--; out = NOANSWER
			:: faults > 0 -> faults--; commit_arrives(out); out = NOANSWER
			:: faults > 0 -> faults--; lateInsert = 1; out = NOANSWER
			fi
		:: else -> sent = 1; out = LOST
		fi;
		rows = 0; rolledBack = 0 }
	fi;
	if
	:: atomic { out == OK -> sure = 1; go = 1 }
	:: atomic { out == NO -> TELL_ALL(TOLD_NO) }
	:: atomic { out == LOST -> TELL_ALL(NOTLOGGED) }
#ifdef M_END_DOES_NOT_LOOK
	:: atomic { out == NOANSWER -> sure = 1; go = 1 }
#else
	:: atomic { out == NOANSWER && log[0].st != ABSENT -> go = 1 }
	:: atomic { out == NOANSWER && log[0].st == ABSENT -> TELL_ALL(UNKNOWN) }
#endif
	fi
}

/* What End does not send itself: another has taken it, or may have. */
inline overtaken(u) {
	if
#ifdef RECEIPTS
	:: receipt[u] == THERE -> tell(u, DELIVERED)
	:: else -> tell(u, PENDING)
#else
	:: log[u].st == ABSENT -> tell(u, DELIVERED)
	:: else -> tell(u, PENDING)
#endif
	fi
}
#endif

#ifdef HOME
#define MAY_HAVE_LEFT (!rolledBack && (rows == 0 || rows == ROWS))
#else
#define MAY_HAVE_LEFT true
#endif

#if BEFORE
proctype App() {
	byte out;
	{
#ifdef HOME
		commit(out)
#else
		insert_entries(out);
		if
		:: atomic { out == OK ->
			if
			:: ANY_OVER -> TELL_ALL(PENDING)
			:: else -> SENDING_ALL(1); go = 1
			fi }
		:: atomic { out == NO -> TELL_ALL(NOTLOGGED) }
#ifdef M_UNKNOWN_ENTRY_IS_NO_ENTRY
		:: atomic { out == NOANSWER -> TELL_ALL(NOTLOGGED) }
#else
		:: atomic { out == NOANSWER -> TELL_ALL(PENDING_OR_GONE) }
#endif
		fi
#endif
	} unless { dead ->
		atomic {
			if
			:: !sent && MAY_HAVE_LEFT -> sent = 1; lateInsert = 1   /* it had left */
			:: skip
			fi;
			inserting = 0; TELL_ALL(NOTHING)
		}
	}
}
#endif

/* ---- the application: besteffort.Deliver of one unit ---- */

proctype Deliver(byte u) {
	byte out = 0;
	byte tries = 0;
	bit doubt = 0;
	bit wasVoid = 0;
	bit again = 0;
	{
		go;
#ifdef HOME
		/* homeEnd.take: what leaves a receipt needs no lease if COMMIT was answered. */
		if
		:: atomic { EXACTLY_ONCE && sure && !over[u] -> sending[u] = 1 }
		:: !(EXACTLY_ONCE && sure && !over[u]) ->
			if
			:: atomic { take_within(u); over[u] = 0; sending[u] = 1 }
			:: atomic { log[u].token != WRITERS_TOKEN -> overtaken(u); goto ended }
			:: atomic { faults > 0 -> faults--; if :: take_within(u) :: skip fi; tell(u, PENDING); goto ended }
			fi
		fi;
#endif
#if BEFORE
#ifndef M_REPEATED_ADD_IS_FORGOTTEN
		doubt = repeated && EXACTLY_ONCE;
#endif
#endif
		exchange_attempt(u, out, 1);
#if BEFORE
		atomic { sending[u] = 0; doubt = doubt || out == NOANSWER };
#else
		/* besteffort.settle */
		doubt = (out == NOANSWER);
#ifdef ALONGSIDE
		sending[u] = 0;
		if
		:: out == OK || IS_THERE(out) ->
			tell(u, AS_FOUND(out));
			ANSWERED_BY_THE_LOG;
			if
			:: inserted == OK && !repeated -> goto delivered
			:: inserted == OK && repeated -> atomic { doubt = 1; goto delivered }
			:: inserted == NO -> goto eraseUnlogged
			:: inserted == NOANSWER || inserted == 0 -> /* besteffort.chase */
				do
				:: exchange_remove(u, WRITERS_TOKEN, again, LATE(u), out);
					if
					:: out == NOANSWER -> again = 1
					:: out == OK -> break
					:: out == LOST
					fi
				:: break
				od;
#ifdef M_CHASED_IS_ERASED
				receipt[u] = NONE;
#endif
				goto ended
			fi
		:: else -> inserted != 0
		fi;
#else
		if
		:: out == OK || IS_THERE(out) -> atomic { sending[u] = 0; tell(u, AS_FOUND(out)); goto eraseUnlogged }
#ifdef LOCALTX
		:: out == REFUSED || out == VOIDED || out == ANSWERED || out == NO || out == BUSY -> atomic { sending[u] = 0; tell(u, TOLD_NO); goto ended }
#else
		:: out == REFUSED || out == VOIDED || out == ANSWERED -> atomic { sending[u] = 0; tell(u, TOLD_NO); goto ended }
#endif
		:: else
		fi;
		{ byte ins; insert_entries(ins); atomic { inserted = ins; sending[u] = 0 } };
#endif
		if
		:: inserted == OK -> doubt = doubt || (repeated && EXACTLY_ONCE)
		:: inserted == NOANSWER -> tell(u, PENDING_OR_GONE); goto ended
		:: inserted == NO ->
			if
#ifdef LOCALTX
			:: out == REFUSED || out == VOIDED || out == ANSWERED || out == NO || out == BUSY -> tell(u, TOLD_NO)
#else
			:: out == REFUSED || out == VOIDED || out == ANSWERED -> tell(u, TOLD_NO)
			:: out == NO || out == BUSY -> tell(u, NOTLOGGED)
#endif
			:: out == NOANSWER ->
#ifdef M_UNKNOWN_UNLOGGED_IS_NOT_LOGGED
				tell(u, NOTLOGGED)
#else
#ifdef RECEIPTS
				/* besteffort.decideUnlogged: nobody can do it later. */
				sending[u] = 1;
				exchange_void(u, out);
				sending[u] = 0;
				if
				:: IS_THERE(out) -> tell(u, AS_FOUND(out))
				:: out == VOIDED || out == ANSWERED -> tell(u, NOTLOGGED)
				:: out == BUSY || out == NOANSWER -> tell(u, UNKNOWN)
				fi
#else
				tell(u, UNKNOWN)
#endif
#endif
			fi;
			goto ended
		fi;
#endif
#ifdef M_MAYBE_IS_FORGOTTEN
		doubt = 0;
#endif
#ifdef M_NO_ANSWER_IS_YES
		if :: out == NOANSWER -> out = OK :: else fi;
#endif
		if
		:: out == OK || IS_THERE(out) -> goto delivered
		:: out == REFUSED || out == VOIDED || out == ANSWERED -> goto refused
#ifdef LOCALTX
		:: out == NO || out == BUSY -> goto refused    /* an answer to COMMIT is final */
#ifdef M_UNANSWERED_COMMIT_IS_REFUSED
		:: out == NOANSWER -> doubt = 0; goto refused
#else
		:: out == NOANSWER && EXACTLY_ONCE -> goto decide
		:: out == NOANSWER && !EXACTLY_ONCE -> goto park
#endif
#else
		:: else
#endif
		fi;

		/* besteffort.retry: after a pause, if the lease is surely kept. */
		do
		:: tries < SYNC_TRIES ->
			if
#ifdef M_RETRY_WITHOUT_LOOK
			:: true -> sending[u] = 1
#else
#ifdef M_LOOK_FAR_FROM_SEND
			:: over[u] -> goto handOver
			:: !over[u] -> skip; skip; sending[u] = 1
#else
			:: atomic { over[u] -> goto handOver }
			:: atomic { !over[u] -> sending[u] = 1 }
#endif
#endif
			fi;
			exchange_attempt(u, out, 1);
			atomic {
				sending[u] = 0; doubt = doubt || out == NOANSWER;
				if :: out != BUSY -> tries++ :: else fi
			};
			if
			:: out == OK || IS_THERE(out) -> goto delivered
			:: out == REFUSED || out == VOIDED || out == ANSWERED -> goto refused
			:: else
			fi
		:: goto handOver /* tries, RetryTimeout or the caller's context are at their end */
		od;

refused:
		if
#ifndef M_REFUSED_IN_DOUBT_IS_TOLD
		:: doubt && EXACTLY_ONCE && !KEEP_REFUSED -> goto decide
		:: (doubt && (!EXACTLY_ONCE || KEEP_REFUSED)) || (MAY_COME_BACK && !KEEP_REFUSED) -> doubt = 1; goto park
		:: !doubt && KEEP_REFUSED ->
#else
		:: KEEP_REFUSED ->
#endif
			atomic {
				exchange_release(u, WRITERS_TOKEN, 0, 1, 0, out);
				if :: out == OK -> STEP(writer_parks) :: else fi;
				tell(u, PENDING); goto ended   /* RefusedError: it may be retried by an operator */
			}
		:: else
		fi;
		atomic { no[u] = 1 };
#ifdef M_TOLD_BEFORE_REMOVAL
		tell(u, TOLD_NO);
#endif
		exchange_remove(u, WRITERS_TOKEN, again, LATE(u), out);
		if
		:: out == OK ->
			STEP(writer_removes_refused);
			if
			:: wasVoid ->
				if
				:: atomic { receipt[u] == VOID -> answered[u] = 1; STEP(void_answered) }
				:: skip      /* it could not be told */
				fi
			:: else
			fi;
			tell(u, TOLD_NO)
#ifdef M_UNCONFIRMED_REMOVAL_IS_TOLD
		:: else -> tell(u, TOLD_NO)
#else
#ifdef M_UNCONFIRMED_REMOVAL_IS_PENDING
		:: else -> tell(u, PENDING)
#else
		:: out == NO -> tell(u, PENDING)
		:: out != OK && out != NO -> tell(u, PENDING_OR_GONE)
#endif
#endif
		fi;
		goto ended;

		/* besteffort.decide */
decide:
		tries = 0;
		do
		:: tries < SYNC_TRIES ->
			if
			:: atomic { over[u] -> goto handOver }
			:: atomic { !over[u] -> sending[u] = 1 }
			fi;
			exchange_void(u, out);
			sending[u] = 0;
			if
			:: out == FOUND -> goto delivered
			:: out == VOIDED || out == ANSWERED -> atomic { doubt = 0; wasVoid = 1; goto refused }
			:: out == NOANSWER -> tries++
			:: out == BUSY
			fi
		:: goto handOver
		od;

handOver:
		if
		:: !over[u] ->
			exchange_release(u, WRITERS_TOKEN, doubt, 0, 0, out);
			if :: out == OK -> STEP(hand_over) :: else fi
#ifdef M_RELEASE_WITHOUT_TOKEN
		:: over[u] -> exchange_release(u, WRITERS_TOKEN, 0, 0, 0, out)
#else
		:: over[u]
#endif
		fi;
		tell(u, PENDING);
		goto ended;

park:
		exchange_release(u, WRITERS_TOKEN, doubt, 1, 0, out);
		if :: out == OK -> STEP(writer_parks) :: else fi;
		tell(u, PENDING);
		goto ended;

		/* removal */
delivered:
		wasVoid = (out == FOUND);
#ifdef RECEIPTS
		atomic {
			tell(u, AS_FOUND(out));
			if
			:: log[u].st == WRITER && log[u].token == WRITERS_TOKEN -> log[u].st = BEHIND; STEP(answered_first)
			:: else
			fi
		};
#endif
		do
		:: exchange_remove(u, WRITERS_TOKEN, again, LATE(u), out);
			if
			:: out == NOANSWER -> again = 1
			:: else -> break
			fi
		:: again && LATE(u) -> break
		od;
		if
		:: out == OK -> STEP(writer_removes_delivered)
		:: else
		fi;
		tell(u, DELIVERED);
#if defined(RECEIPTS) && !defined(KEY)
		/* Its receipt is erased if no attempt can need it any more; that of a key is kept. */
		if
#ifdef M_ERASED_WITHOUT_OWNING
		:: atomic { !repeated && !doubt && !wasVoid -> receipt[u] = NONE; STEP(erased) }
#else
#ifdef M_ERASED_IN_DOUBT
		:: atomic { out == OK && !repeated -> receipt[u] = NONE; STEP(erased) }
#else
#ifdef M_ERASED_THOUGH_THE_ENTRY_MAY_COME_BACK
		:: atomic { out == OK && !wasVoid && !lateAttempt[u] -> receipt[u] = NONE; STEP(erased) }
#else
		:: atomic { out == OK && !repeated && !doubt && !wasVoid -> receipt[u] = NONE; STEP(erased) }
#endif
#endif
#endif
		:: skip
		fi;
#endif
#if !BEFORE
		goto ended;
eraseUnlogged:
#if defined(RECEIPTS) && !defined(KEY)
		if
		:: atomic { out == OK && !doubt -> receipt[u] = NONE; STEP(erased) }
		:: skip
		fi;
#endif
#endif
ended:
		done[u] = 1
	} unless { dead ->
		atomic {
			if
			:: sending[u] && WHOLE && lateAttempt[u] < MOST_LATE -> lateAttempt[u]++  /* it had left */
			:: writing[u] == 1 -> writing[u] = ORPHAN
			:: skip
			fi;
			if :: writing[u] == 1 -> writing[u] = ORPHAN_COMMIT :: else fi;
			sending[u] = 0; done[u] = 1
		}
	}
}

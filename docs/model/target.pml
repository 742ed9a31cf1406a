/* What a target does with what arrives, and the exchanges with it: a message
 * arrives and is answered, or is lost before or behind that, or stands still. */

inline apply(u) {
	d_step {
		applied[u] = applied[u] + 1;
#ifdef HOME
		CLAIM(applied_only_with_the_callers_rows, home);
#endif
#ifdef RECEIPTS
		receipt[u] = THERE; STEP(receipt_committed);
		CLAIM(applied_at_most_once, applied[u] <= 1);
		CLAIM(void_is_never_applied, !voided[u]);
#else
		if :: applied[u] > 2 -> applied[u] = 2 :: else fi;
#endif
#ifdef KEY
		firsts[u] = 0;
#endif
		CLAIM(replayed_is_never_applied, told[u] != TOLD_REPLAYED);
		CLAIM(told_no_is_never_applied, told[u] != TOLD_NO);
		CLAIM(not_logged_is_never_applied, told[u] != NOTLOGGED)
	}
}

/* An attempt in one round trip, as the server sees it. */
inline attempt_arrives(u, out) {
#ifdef RECEIPTS
	if
#ifdef M_RECEIPT_AFTER_WRITE
	/* The write is committed by itself, its receipt behind it. */
	:: writing[u] == 0 ->
		if
		:: receipt[u] == NONE -> apply(u); out = OK
		:: else -> applied[u]++; CLAIM(applied_at_most_once, applied[u] <= 1); out = FOUND
		fi
#else
	:: receipt[u] == NONE && writing[u] == 0 ->
		if
		:: apply(u); out = OK
		:: refusals > 0 -> refusals--; out = REFUSED; STEP(receipt_rolled_back)
		:: faults > 0 -> faults--; out = NO
		fi
	:: receipt[u] == THERE -> out = FOUND
	:: receipt[u] == VOID && !answered[u] -> out = VOIDED
	:: receipt[u] == VOID && answered[u] -> out = ANSWERED
#endif
	fi
#else
	if
	:: apply(u); out = OK
	:: refusals > 0 -> refusals--; out = REFUSED
	:: faults > 0 -> faults--; out = NO
	fi
#endif
}

inline void_arrives(u, out) {
	if
#ifdef KEY
	/* It does not stay: what is sent again may be applied. */
	:: receipt[u] == NONE && writing[u] == 0 -> out = VOIDED
	:: receipt[u] == THERE && firsts[u] -> met[u] = 1; old[u] = 0; out = REPLAYED
#else
	:: receipt[u] == NONE && writing[u] == 0 ->
#ifdef M_VOID_WITHOUT_INSERT
		/* It only looks. */
		out = VOIDED; voided[u] = 1; STEP(voided)
#else
		receipt[u] = VOID; voided[u] = 1; STEP(voided);
		CLAIM(void_is_never_applied, applied[u] == 0);
		out = VOIDED
#endif
#ifdef M_VOID_DOES_NOT_WAIT
	:: receipt[u] == NONE && writing[u] != 0 -> out = VOIDED; voided[u] = 1
#endif
#endif
	:: receipt[u] == THERE && !FIRSTS(u) -> out = FOUND
	:: receipt[u] == VOID -> out = VOIDED
	fi
}

/* Who meets a receipt keeps it anew before it believes it: another attempt may
 * have begun just now. */
inline keep_anew(u, out) {
#ifndef M_MET_IS_NOT_KEPT_ANEW
	if
	:: (out == FOUND || out == VOIDED || out == ANSWERED) && gone[u] && old[u] -> old[u] = 0; STEP(kept_anew)
	:: else
	fi
#else
	skip
#endif
}

#define MOST_LATE 2

inline exchange_attempt(u, out, mine) {
	CLAIM(what_must_not_run_again_is_not, REPLAYABLE || mine == 1);
#ifdef STEPWISE
	/* Receipt and write. */
	atomic {
		if
		:: receipt[u] == NONE && writing[u] == 0 -> writing[u] = mine; out = OK; STEP(receipt_written)
		:: receipt[u] == THERE && !FIRSTS(u) -> out = FOUND
		:: receipt[u] == THERE && FIRSTS(u) -> out = REPLAYED
		:: receipt[u] == VOID && !answered[u] -> out = VOIDED
		:: receipt[u] == VOID && answered[u] -> out = ANSWERED
		:: writing[u] != 0 -> out = BUSY   /* a lock timeout; without it: waiting */
		:: faults > 0 -> faults--; out = NOANSWER
		fi;
		keep_anew(u, out)
	};
	if
	:: atomic { out == OK && writing[u] == mine ->
		/* COMMIT. */
		if
		:: writing[u] = 0; apply(u); out = OK
		:: refusals > 0 -> refusals--; writing[u] = 0; out = REFUSED; STEP(receipt_rolled_back)
		:: faults > 0 -> faults--; writing[u] = 0; apply(u); out = NOANSWER
		:: faults > 0 -> faults--; writing[u] = ORPHAN; out = NOANSWER
		:: faults > 0 -> faults--; writing[u] = ORPHAN_COMMIT; out = NOANSWER
		fi }
#ifdef KEY
	/* What was read is kept anew, if it is still there. */
	:: atomic { out == REPLAYED ->
		if
		:: receipt[u] == THERE && firsts[u] -> met[u] = 1; old[u] = 0; STEP(kept_anew)
#ifdef M_PURGED_RECEIPT_COUNTS_AS_MET
		:: !(receipt[u] == THERE && firsts[u]) -> met[u] = 1
#else
		:: !(receipt[u] == THERE && firsts[u]) -> out = BUSY
#endif
		:: faults > 0 -> faults--; out = NOANSWER
		fi }
#endif
	:: else
	fi
#else
	atomic {
		if
		:: attempt_arrives(u, out); keep_anew(u, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; attempt_arrives(u, out); out = NOANSWER
		:: faults > 0 && lateAttempt[u] < MOST_LATE -> faults--; lateAttempt[u]++; out = NOANSWER
		fi
	}
#endif
}

inline exchange_void(u, out) {
	atomic {
		if
		:: void_arrives(u, out); keep_anew(u, out)
		:: writing[u] != 0 -> out = BUSY
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; void_arrives(u, out); out = NOANSWER
		:: faults > 0 && lateVoid[u] < 1 -> faults--; lateVoid[u]++; out = NOANSWER
		fi
	}
}

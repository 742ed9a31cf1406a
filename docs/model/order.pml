/*
 * Order per key: writes to one data source under one key, each by a writer of its own
 * (internal/besteffort), one job, an operator, the purges, and a network that holds up what
 * it likes. txlog/order.go keeps the order, internal/attempt/order.go is the fence. What
 * an attempt in doubt becomes by a void receipt is the matter of the other configurations;
 * receipts stay.
 */

#ifndef WRITES
#define WRITES 2
#endif
#define MOST (2 * WRITES + FAULTS) /* numbers */

/* The row of the key in the log, and its queue. */
bit  keyRow;
byte last;
byte head;             /* the first one plus one; 0: nothing is under the key */
byte queue[WRITES];
#define QUEUED  1
#define SKIPPED 2

typedef Entry { byte st; byte token; bit blocked; byte number; };
Entry log[WRITES];
#define THE_JOBS 2

/* The target: receipts, and the number in bed_order. */
bit  there[WRITES];
byte fence;

/* Messages that stand still: the number of an attempt, and an INSERT. */
byte late[WRITES];
bit  lateAdd[WRITES];

byte sending[WRITES];  /* the number under which the writer has looked and will send */
bit  over[WRITES];     /* the writer's lease has run out */
bit  dead[WRITES];
bit  finished[WRITES];
bit  jobHas;
byte jobUnit;
bit  jobOver;

/* What the judge remembers. */
byte commits;
byte place[MOST + 1];  /* of a number: its entry was the how-manieth to be committed */
byte latest;           /* the highest place that took effect */
byte applied[WRITES];
byte told[WRITES];
bit  logged[WRITES];
bit  no[WRITES];
bit  discarded[WRITES];
bit  skipped[WRITES];  /* an operator has let the others pass it */

byte faults = FAULTS;
byte refusals = REFUSALS;
byte operations = OPERATIONS;

#if WRITES > 2
#define ANY(what) (what(0) || what(1) || what(2))
#else
#define ANY(what) (what(0) || what(1))
#endif
#define IN_QUEUE(u)  (queue[u] != 0)
#define WAITS(u)     (queue[u] == QUEUED)
#define UNDER_WAY(u) (late[u] || lateAdd[u] || (logged[u] && !finished[u]))
#define BUSY_KEY     (keyRow && (head != 0 || ANY(IN_QUEUE)))
#define MINE 1

/* ---- the target: receipt, fence and write in one local transaction ---- */

inline effect(u, n) {
	applied[u]++; there[u] = 1;
	CLAIM(applied_at_most_once, applied[u] <= 1);
	CLAIM(effects_are_in_order, place[n] > latest);
	CLAIM(told_no_is_never_applied, told[u] != TOLD_NO);
	latest = place[n]
}

inline attempt_arrives(u, n, out) {
	if
#ifdef M_ORDER_WITHOUT_RECEIPT
	:: false -> skip
#else
	:: there[u] -> out = FOUND
#endif
#ifdef M_NO_FENCE
	:: !there[u] -> effect(u, n); out = OK
#else
#ifdef M_ORDER_WITHOUT_RECEIPT
	:: fence <= n -> fence = n; effect(u, n); out = OK
#else
	:: !there[u] && fence < n -> fence = n; effect(u, n); out = OK
#endif
#endif
	:: !there[u] && fence < n && refusals > 0 -> refusals--; out = REFUSED
#ifdef M_FENCE_BEFORE_THE_TRANSACTION
	:: !there[u] && fence < n && faults > 0 -> faults--; fence = n; out = NOANSWER
#endif
#ifndef M_NO_FENCE
	:: !there[u] && fence >= n -> out = REFUSED;
		/* Overtaken: of the writes in the log only what an operator has skipped. */
		CLAIM(nobody_is_overtaken_in_its_turn, log[u].st == ABSENT || skipped[u] || log[u].number != n)
#endif
	fi
}

inline exchange_attempt(u, n, out) {
	atomic {
		if
		:: attempt_arrives(u, n, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; attempt_arrives(u, n, out); out = NOANSWER
		:: faults > 0 && !late[u] -> faults--; late[u] = n; out = NOANSWER
		fi
	}
}

/* ---- the log: each of these is one transaction, which holds the row of the key ---- */

/* insertOrdered. behind: another one is the first. */
inline add_arrives(u, n, behind) {
	if
#ifdef M_REPEATED_ADD_TAKES_A_NEW_NUMBER
	:: log[u].st != ABSENT -> last++; n = last; place[n] = place[log[u].number]; behind = log[u].blocked
#else
#ifdef M_ADOPTED_AS_DUE_THOUGH_IT_WAITS
	:: log[u].st != ABSENT -> n = log[u].number; behind = log[u].blocked
#else
	:: log[u].st != ABSENT -> n = log[u].number; behind = (queue[u] == QUEUED) /* adopt */
#endif
#endif
	:: else ->
		keyRow = 1;
#ifndef M_NUMBER_BEFORE_THE_LOCK
		last++; n = last;
#endif
		commits++; place[n] = commits;
		logged[u] = 1; skipped[u] = 0; log[u].number = n; log[u].token = MINE;
#ifndef M_HEAD_IS_READ_BEFORE_THE_LOCK
		behind = (head != 0);
#endif
		if
		:: !behind -> head = u + 1; log[u].st = WRITER; log[u].blocked = 0
		:: else -> log[u].st = WAITING; queue[u] = QUEUED;
#ifdef M_FOLLOWER_IS_DUE
			log[u].blocked = 0
#else
			log[u].blocked = 1
#endif
		fi
	fi
}

inline exchange_add(u, n, behind, out) {
#ifdef M_NUMBER_BEFORE_THE_LOCK
	atomic { if :: log[u].st == ABSENT -> last++; n = last :: else fi };
#endif
#ifdef M_HEAD_IS_READ_BEFORE_THE_LOCK
	behind = (head != 0);
#endif
	atomic {
		if
		:: add_arrives(u, n, behind); out = OK
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; add_arrives(u, n, behind); out = NOANSWER
		:: faults > 0 && !lateAdd[u] -> faults--; lateAdd[u] = 1; out = NOANSWER
		fi
	}
}

inline frees(v) {
#ifdef M_SUCCESSOR_IS_NOT_MADE_DUE
	queue[v] = 0; head = v + 1
#else
	queue[v] = 0; log[v].blocked = 0; head = v + 1
#endif
}

#define BEFORE_ALL(v, w) (queue[v] == QUEUED && (v == w || queue[w] != QUEUED || log[v].number < log[w].number))

/* leave: the one with the next number becomes the head, and is due. */
inline leave(u) {
	if
	:: head == u + 1 ->
		if
#if WRITES > 2
		:: BEFORE_ALL(0, 1) && BEFORE_ALL(0, 2) -> frees(0)
		:: BEFORE_ALL(1, 0) && BEFORE_ALL(1, 2) -> frees(1)
#ifdef M_FREED_BY_CHANCE
		:: queue[2] == QUEUED -> frees(2)
#else
		:: BEFORE_ALL(2, 0) && BEFORE_ALL(2, 1) -> frees(2)
#endif
#else
		:: BEFORE_ALL(0, 1) -> frees(0)
		:: BEFORE_ALL(1, 0) -> frees(1)
#endif
		:: !ANY(WAITS) -> head = 0
		fi
	:: else -> queue[u] = 0
	fi
}

inline remove_arrives(u, t, again, outOfTime, out) {
	if
	:: log[u].st != ABSENT && log[u].token == t ->
		log[u].st = ABSENT; log[u].token = 0; log[u].blocked = 0; log[u].number = 0;
		CLAIM(gone_is_explained, applied[u] > 0 || no[u] || discarded[u]);
#ifdef M_QUICK_REMOVAL_DOES_NOT_LOOK_BEHIND
		head = 0;
#else
#ifdef M_FREED_AFTER_THE_REMOVAL
		if :: leave(u) :: faults > 0 -> faults-- fi;
#else
		leave(u);
#endif
#endif
		out = OK
	:: log[u].st == ABSENT && again && !outOfTime -> out = OK
	:: else -> out = LOST;
#ifdef M_FREED_WITHOUT_THE_TOKEN
		if :: log[u].st != ABSENT -> leave(u) :: else fi
#endif
	fi
}

inline exchange_remove(u, t, again, outOfTime, out) {
#ifdef M_FREED_BEFORE_THE_REMOVAL
	atomic { if :: log[u].token == t -> leave(u) :: else fi };
#endif
	atomic {
		if
		:: remove_arrives(u, t, again, outOfTime, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; remove_arrives(u, t, again, outOfTime, out); out = NOANSWER
		fi
	}
}

/* Storage.Release. */
inline exchange_release(u, t, to) {
	atomic {
		if
		:: log[u].st != ABSENT && log[u].token == t -> log[u].st = to; log[u].token = 0
		:: log[u].st != ABSENT && log[u].token == t && faults > 0 -> faults--
		:: !(log[u].st != ABSENT && log[u].token == t)
		fi
	}
}

/* ---- a writer: internal/besteffort ---- */

inline tell(u, what) {
	if
	:: told[u] == NOTHING -> told[u] = what;
		CLAIM(told_delivered_is_applied, what != DELIVERED || applied[u] > 0);
		CLAIM(told_no_is_never_applied, what != TOLD_NO || applied[u] == 0)
	:: else
	fi
}

proctype Write(byte u) {
	byte out;
	byte n;
	bit behind;
	bit doubt;
	bit again;
	{
		exchange_add(u, n, behind, out);
		do
		:: out == NOANSWER && !over[u] -> doubt = 1; exchange_add(u, n, behind, out)
		:: atomic { out == NOANSWER -> tell(u, PENDING_OR_GONE); goto ended }
		:: out == OK -> break
		od;
		/* follow: pending behind another one, or it waits for its turn in the call. */
		if
		:: !behind
		:: atomic { behind -> tell(u, PENDING); goto ended }
#ifdef M_FOLLOWER_DOES_NOT_LOOK
		:: atomic { behind && log[u].st == WAITING && log[u].token == MINE -> log[u].st = WRITER; behind = 0 }
#else
		:: atomic { behind && log[u].st == WAITING && log[u].token == MINE && !log[u].blocked -> log[u].st = WRITER; behind = 0 }
#endif
		fi;
		do
		:: atomic { over[u] -> goto pending }
		:: atomic { !over[u] -> sending[u] = n };
			exchange_attempt(u, n, out);
			sending[u] = 0;
			if
			:: out == NOANSWER && !doubt -> doubt = 1 /* once more */
			:: out == NOANSWER && doubt -> goto pending
			:: else -> break
			fi
		od;
		if
		:: atomic { out == REFUSED && doubt -> goto pending }
		:: atomic { out == REFUSED && !doubt -> no[u] = 1 }
		:: atomic { out != REFUSED -> tell(u, DELIVERED) }
		fi;
		do
		:: exchange_remove(u, MINE, again, over[u], out);
			if
			:: out == NOANSWER && !over[u] -> again = 1
			:: else -> break
			fi
		od;
		atomic {
			if
			:: out == OK -> tell(u, TOLD_NO)
			:: else -> tell(u, PENDING_OR_GONE)
			fi
		};
		goto ended;
pending:
		exchange_release(u, MINE, WAITING);
		atomic { tell(u, PENDING) };
ended:
		atomic { finished[u] = 1; out = 0; n = 0; behind = 0; doubt = 0; again = 0 }
	} unless { dead[u] ->
		atomic {
			if
			:: sending[u] && !late[u] -> late[u] = sending[u] /* it had left */
			:: skip
			fi;
			sending[u] = 0; finished[u] = 1; out = 0; n = 0; behind = 0; doubt = 0; again = 0
		}
	}
}

/* ---- asyncjob ---- */

inline claims(u) {
	log[u].st = JOB; log[u].token = THE_JOBS; jobUnit = u; jobHas = 1; jobOver = 0; n = log[u].number
}

#define DUE(u) (log[u].st == WAITING && !log[u].blocked)

proctype TheJob() {
	byte out;
	byte n;
	bit again;
end_job:
	do
	:: if
		:: atomic { DUE(0) -> claims(0) }
		:: atomic { DUE(1) -> claims(1) }
#if WRITES > 2
		:: atomic { DUE(2) -> claims(2) }
#endif
		fi;
		exchange_attempt(jobUnit, n, out);
		if
		:: jobOver
		:: !jobOver && out == NOANSWER -> exchange_release(jobUnit, THE_JOBS, WAITING)
		:: !jobOver && out == REFUSED -> exchange_release(jobUnit, THE_JOBS, PARKED)
		:: !jobOver && (out == OK || out == FOUND) ->
			do
			:: exchange_remove(jobUnit, THE_JOBS, again, jobOver, out);
				if
				:: out == NOANSWER && !jobOver -> again = 1
				:: else -> break
				fi
			od
		fi;
		atomic { jobHas = 0; jobUnit = 0; jobOver = 0; n = 0; out = 0; again = 0 }
	od
}

/* ---- what goes on around a write ---- */

proctype Others(byte u) {
	byte ignored;
	bit behind;
end_others:
	do
	:: atomic { late[u] > 0 -> attempt_arrives(u, late[u], ignored); late[u] = 0; ignored = 0 }
	:: atomic { late[u] > 0 -> late[u] = 0 }
#ifdef M_HEAD_IS_READ_BEFORE_THE_LOCK
	:: atomic { lateAdd[u] -> lateAdd[u] = 0 }
#else
#ifdef M_NUMBER_BEFORE_THE_LOCK
	:: atomic { lateAdd[u] -> lateAdd[u] = 0 }
#else
	:: atomic { lateAdd[u] -> lateAdd[u] = 0; add_arrives(u, ignored, behind); ignored = 0; behind = 0 }
	:: atomic { lateAdd[u] -> lateAdd[u] = 0 }
#endif
#endif
	:: atomic { !dead[u] && !finished[u] && faults > 0 -> faults--; dead[u] = 1 }
	/* A lease ends. */
	:: atomic { log[u].st == WRITER && finished[u] -> log[u].st = WAITING }
	:: atomic { log[u].st == WRITER && !finished[u] && !over[u] && faults > 0 -> faults--; over[u] = 1; log[u].st = WAITING }
	:: atomic { log[u].st == JOB && !(jobHas && jobUnit == u && !jobOver) -> log[u].st = WAITING }
	:: atomic { log[u].st == JOB && jobHas && jobUnit == u && !jobOver && faults > 0 -> faults--; jobOver = 1; log[u].st = WAITING }

	/* An operator, who is refused what is leased. */
#define FREE (log[u].st == WAITING || log[u].st == PARKED)
	:: atomic { operations > 0 && log[u].st == WAITING -> operations--; log[u].st = PARKED; log[u].token = 0; log[u].blocked = 0 }
#ifdef M_RETRY_DOES_NOT_WAIT
	:: atomic { operations > 0 && FREE -> operations--; log[u].st = WAITING; log[u].token = 0; log[u].blocked = 0 }
#else
	:: atomic { operations > 0 && FREE -> operations--; log[u].st = WAITING; log[u].token = 0; log[u].blocked = (queue[u] == QUEUED) }
#endif
	:: atomic { operations > 0 && FREE -> operations--; discarded[u] = 1;
		log[u].st = ABSENT; log[u].token = 0; log[u].blocked = 0; log[u].number = 0;
#ifndef M_DISCARD_FREES_NOBODY
		leave(u)
#endif
		}
	:: atomic { operations > 0 && FREE && head == u + 1 -> operations--; log[u].st = PARKED; log[u].token = 0; log[u].blocked = 0;
		leave(u); skipped[u] = 1;
#ifndef M_SKIPPED_IS_NOT_NOTED
		queue[u] = SKIPPED
#endif
		}
	od
}

/* PurgeOrder of the log, and of the target, behind everything that was under way. */
proctype Purges() {
end_purges:
	do
#ifdef M_KEY_OF_A_SKIPPED_ONE_IS_PURGED
	:: atomic { keyRow && head == 0 && !ANY(UNDER_WAY) -> keyRow = 0 }
#else
	:: atomic { keyRow && head == 0 && !ANY(IN_QUEUE) && !ANY(UNDER_WAY) -> keyRow = 0 }
#endif
#ifdef M_FENCE_IS_PURGED_UNASKED
	:: atomic { fence > 0 && !ANY(UNDER_WAY) && !jobHas -> fence = 0 }
#else
	:: atomic { fence > 0 && !ANY(UNDER_WAY) && !jobHas && !BUSY_KEY -> fence = 0 }
#endif
	od
}

/* What must hold when nothing moves any more. */
#define STUCK(u)   (log[u].st == WAITING && log[u].blocked)
#define IN_LOG(u)  (head == u + 1 && log[u].st != ABSENT)
#define JUDGE(u) \
	CLAIM(every_entry_ends, log[u].st == ABSENT || log[u].st == PARKED || STUCK(u)); \
	CLAIM(no_follower_waits_for_nothing, !STUCK(u) || (head != u + 1 && ANY(IN_LOG))); \
	CLAIM(accepted_is_explained, !logged[u] || log[u].st != ABSENT || applied[u] > 0 || no[u] || discarded[u]); \
	CLAIM(pending_is_kept, told[u] != PENDING || log[u].st != ABSENT || applied[u] > 0 || discarded[u])

proctype OrderJudge() {
	timeout ->
	d_step {
		JUDGE(0); JUDGE(1)
#if WRITES > 2
		; JUDGE(2)
#endif
	}
}

init {
	atomic {
		run Write(0); run Others(0);
		run Write(1); run Others(1);
#if WRITES > 2
		run Write(2); run Others(2);
#endif
		run TheJob(); run Purges(); run OrderJudge()
	}
}

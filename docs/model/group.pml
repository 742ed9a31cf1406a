/*
 * A group with a way back: the parts of two data sources, all of it done or all
 * of it undone. An application that ends (bedsql's End), one job, an operator who
 * turns the group back, and the purge. What an attempt on one part does is
 * the matter of the other configurations; leases of units are left out: here a unit may
 * be sent by anybody at any time while it is in the log, and late.
 */

#define PARTS 2

/* The way back, and the units of the parts. */
#define DORMANT 1
#define TURNED  2
#define HALF    3      /* parked: what undoes a part was refused */
byte way;
byte holder;           /* the token of its lease: 0 nobody's */
bit  unit[PARTS];
bit  parked[PARTS];    /* of a unit: it was refused, and there is no way back */
bit  no[PARTS];        /* the target refuses the part for good */

#define THE_APPLICATION 1
#define THE_JOB 2

byte receipt[PARTS];
byte applied[PARTS];
byte undone[PARTS];
byte late[PARTS];      /* attempts that stand still */
bit  sends[PARTS];     /* the application has looked and will send */
bit  jobSends[PARTS];
bit  logged;
bit  dead;
bit  finished;         /* the application works on nothing any more */
byte told;
#define COMPENSATED 9

byte faults = FAULTS;
byte refusals = REFUSALS;
byte operations = OPERATIONS;

#ifdef SERVICE
#include "service.pml"
#define IS_CALL(u) (u == SERVICE_PART)
#else
#define IS_CALL(u) false
#define exchange_call(out) skip
#define exchange_undo_call(seen, out) skip
#define SEEN(who) false
#endif

/* ---- the targets ---- */

inline arrives(u, out) {
	if
	:: receipt[u] == NONE ->
		if
		:: !no[u] -> applied[u]++; receipt[u] = THERE; out = OK;
			CLAIM(applied_at_most_once, applied[u] <= 1);
			CLAIM(told_undone_is_undone, told != COMPENSATED)
		:: refusals > 0 && !no[u] -> refusals--; no[u] = 1; out = REFUSED
		:: no[u] -> out = REFUSED
		fi
	:: receipt[u] == THERE -> out = FOUND
	:: receipt[u] == VOID -> out = VOIDED
	fi
}

inline exchange_part(u, out) {
	atomic {
		if
		:: IS_CALL(u) -> exchange_call(out)
		:: !IS_CALL(u) -> arrives(u, out)
		:: !IS_CALL(u) && faults > 0 -> faults--; out = NOANSWER
		:: !IS_CALL(u) && faults > 0 -> faults--; arrives(u, out); out = NOANSWER
		:: !IS_CALL(u) && faults > 0 && late[u] < 1 -> faults--; late[u]++; out = NOANSWER
		fi
	}
}

/* attempt.Undo: void it, or make void what is there and run what undoes it, in one
 * local transaction. */
inline undo_arrives(u, out) {
	if
#ifdef M_UNDO_INSERTS_NO_VOID
	:: receipt[u] == NONE -> out = OK
#else
	:: receipt[u] == NONE -> receipt[u] = VOID; out = OK
#endif
	:: receipt[u] == THERE ->
		if
		:: receipt[u] = VOID; undone[u]++; out = OK;
			CLAIM(undone_at_most_once, undone[u] <= applied[u]);
			CLAIM(told_done_is_never_undone, told != DELIVERED)
#ifdef M_VOID_BEFORE_WHAT_UNDOES
		:: faults > 0 -> faults--; receipt[u] = VOID; out = NOANSWER
#endif
		:: refusals > 0 -> refusals--; out = REFUSED
		fi
#ifdef M_UNDO_DOES_NOT_LOOK_AT_THE_VOID
	:: receipt[u] == VOID -> undone[u]++; out = OK; CLAIM(undone_at_most_once, undone[u] <= applied[u])
#else
	:: receipt[u] == VOID -> out = OK
#endif
	fi
}

inline exchange_undo(u, seen, out) {
	atomic {
		if
		:: IS_CALL(u) -> exchange_undo_call(seen, out)
		:: !IS_CALL(u) -> undo_arrives(u, out)
		:: !IS_CALL(u) && faults > 0 -> faults--; out = NOANSWER
		:: !IS_CALL(u) && faults > 0 -> faults--; undo_arrives(u, out); out = NOANSWER
		fi
	}
}

/* ---- the log ---- */

inline log_group() {
	logged = 1; unit[0] = 1; unit[1] = 1;
#ifndef M_WAY_BACK_IS_LOGGED_AFTERWARDS
	way = DORMANT
#endif
}

/* Storage.Turn: one transaction. */
inline turn_arrives(who, out) {
	if
	:: way == DORMANT -> way = TURNED; holder = who; out = OK;
		unit[0] = 0; unit[1] = 0
	:: way == TURNED && (holder == 0 || holder == who) -> holder = who; out = OK
	:: way == TURNED && holder != 0 && holder != who -> out = LOST
	:: way == HALF -> out = LOST
	:: way == ABSENT -> out = NO
	fi
}

inline exchange_turn(who, out) {
	atomic {
		if
		:: turn_arrives(who, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; turn_arrives(who, out); out = NOANSWER
		fi
	}
}

inline forget_arrives(u) {
#ifdef SERVICE
	delivered = delivered || (IS_CALL(u) && unit[u]);
#endif
	unit[u] = 0
}

inline exchange_forget(u, out) {
	atomic {
		if
		:: forget_arrives(u); out = OK
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; forget_arrives(u); out = NOANSWER
		fi;
#ifdef M_PARTS_RECEIPT_IS_ERASED
		if :: out == OK && receipt[u] == THERE -> receipt[u] = NONE :: else fi;
#endif
	}
}

/* Storage.Complete, which wants the way back dormant. */
inline exchange_complete(out) {
	atomic {
		if
		:: way == DORMANT -> way = ABSENT; holder = 0; out = OK
		:: way != DORMANT -> out = LOST
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 && way == DORMANT -> faults--; way = ABSENT; holder = 0; out = NOANSWER
		fi
	}
}

/* Under a lease: from the last part to the first, and then the way back goes. */
inline undo_all(who, out) {
	exchange_undo(1, SEEN(who), out);
	if
	:: out == OK -> exchange_undo(0, SEEN(who), out)
	:: else
	fi;
	if
	:: atomic { out == REFUSED ->
		if :: way == TURNED && holder == who -> way = HALF; holder = 0 :: else fi }
#ifdef M_BUSY_UNDO_COUNTS_AS_DONE
	:: atomic { out == OK || out == BUSY ->
#else
	:: atomic { out == OK ->
#endif
		if
		:: way == TURNED && holder == who -> way = ABSENT; holder = 0
		:: way == TURNED && holder == who && faults > 0 -> faults--; way = ABSENT; holder = 0; out = NOANSWER
		:: way == TURNED && holder == who && faults > 0 -> faults--; out = NOANSWER
		:: !(way == TURNED && holder == who) -> out = LOST
		fi }
	:: out == NOANSWER || out == NO || out == BUSY -> /* it is given back */
		atomic { if :: holder == who -> holder = 0 :: else fi }
	fi
}

/* ---- bedsql: End ---- */

proctype End() {
	byte out;
	bit refused;
	byte gone;
	byte u;
	{
		atomic {
			if
			:: log_group()
			:: faults > 0 -> faults--; goto ended
			fi
		};
#ifdef M_WAY_BACK_IS_LOGGED_AFTERWARDS
		atomic { if :: unit[0] || unit[1] -> way = DORMANT :: else fi };
#endif
		do
		:: u < PARTS ->
			/* The lease is kept: nobody else has turned it, as far as is known. */
			if
			:: atomic { unit[u] -> sends[u] = 1 }
			:: atomic { !unit[u] -> goto pending }
			fi;
			exchange_part(u, out);
			sends[u] = 0;
#ifdef SERVICE
			knows = knows || IS_CALL(u) && (out == OK || out == FOUND);
#endif
			if
			:: out == OK || out == FOUND ->
				exchange_forget(u, out);
				if :: out == OK -> gone++ :: else fi
			:: out == REFUSED -> refused = 1
			:: else
			fi;
			u++
		:: else -> break
		od;
		if
		:: refused ->
			exchange_turn(THE_APPLICATION, out);
			if
			:: out == OK ->
				undo_all(THE_APPLICATION, out);
				atomic { if
#ifdef M_UNANSWERED_UNDO_IS_TOLD_AS_DONE
				:: out == OK || out == NOANSWER -> told = COMPENSATED;
#else
				:: out == OK -> told = COMPENSATED;
#endif
					CLAIM(told_undone_is_undone, applied[0] == undone[0] && applied[1] == undone[1])
				:: else -> told = PENDING
				fi }
			:: else -> told = PENDING
			fi
#ifdef M_COMPLETED_THOUGH_A_PART_IS_LEFT
		:: !refused ->
#else
		:: !refused && gone == PARTS ->
#endif
#ifdef M_TOLD_DONE_BEFORE_COMPLETED
			told = DELIVERED;
#endif
			exchange_complete(out);
			if
			:: atomic { out == OK && gone == PARTS -> told = DELIVERED }
			:: !(out == OK && gone == PARTS)
			fi
#ifndef M_COMPLETED_THOUGH_A_PART_IS_LEFT
		:: !refused && gone < PARTS
#endif
		fi;
pending:
ended:
		finished = 1
	} unless { dead ->
		atomic {
			if
			:: sends[0] && late[0] < 1 -> late[0]++  /* it had left */
			:: sends[1] && late[1] < 1 -> late[1]++
			:: skip
			fi;
			sends[0] = 0; sends[1] = 0; finished = 1
		}
	}
}

/* ---- asyncjob ---- */

inline deliver_part(u) {
	exchange_part(u, out);
	jobSends[u] = 0;
	if
	:: out == OK || out == FOUND -> exchange_forget(u, out)
	:: out == REFUSED -> exchange_turn(0, out);
		if :: out == NO -> parked[u] = 1 :: else fi
	:: else
	fi
}

proctype Job() {
	byte out;
end_job:
	do
	:: atomic { unit[0] && !parked[0] -> jobSends[0] = 1 }; deliver_part(0)
	:: atomic { unit[1] && !parked[1] -> jobSends[1] = 1 }; deliver_part(1)
	/* A dormant way back is claimed, and the log asked for the units. */
	:: atomic { way == DORMANT && holder == 0 && logged -> holder = THE_JOB };
		if
		:: !unit[0] && !unit[1] ->
#ifdef M_COMPLETED_WITHOUT_THE_TOKEN
			atomic { way = ABSENT; holder = 0 }
#else
			atomic { if :: way == DORMANT && holder == THE_JOB -> way = ABSENT; holder = 0 :: else fi }
#endif
		:: unit[0] || unit[1] ->
			if
			:: skip
			:: atomic { operations > 0 -> operations-- }; exchange_turn(0, out) /* its time is over */
			fi;
			atomic { if :: holder == THE_JOB -> holder = 0 :: else fi }
		fi
	:: atomic { way == TURNED && holder == 0 -> holder = THE_JOB }; undo_all(THE_JOB, out);
		atomic { if :: holder == THE_JOB -> holder = 0 :: else fi }
	od
}

proctype Others() {
	byte ignored;
end_others:
	do
	:: atomic { late[0] > 0 -> late[0]--; arrives(0, ignored); ignored = 0 }
	:: atomic { late[0] > 0 -> late[0]-- }
	:: atomic { late[1] > 0 && !IS_CALL(1) -> late[1]--; arrives(1, ignored); ignored = 0 }
	:: atomic { late[1] > 0 && !IS_CALL(1) -> late[1]-- }
	:: atomic { !dead && !finished && faults > 0 -> faults--; dead = 1 }
	/* A lease ends. */
	:: atomic { holder == THE_APPLICATION && (finished || faults > 0) ->
		if :: finished :: else -> faults-- fi; holder = 0 }
	:: atomic { holder == THE_JOB && faults > 0 -> faults--; holder = 0 }
	/* An operator, bed-job compensate and retry. */
	:: atomic { operations > 0 && way == DORMANT -> operations--; turn_arrives(0, ignored); ignored = 0 }
	:: atomic { operations > 0 && way == HALF -> operations--; way = TURNED }
	/* The purge, behind everything that was under way. */
#ifdef M_PURGE_DOES_NOT_ASK_FOR_THE_WAY_BACK
#define MAY_GO(u) (logged && finished && !unit[u] && !late[u] && !jobSends[u])
#else
#ifdef M_RECEIPT_OF_A_GROUP_IS_NOT_KEPT
#define MAY_GO(u) (logged && finished && way == ABSENT)
#else
#define MAY_GO(u) (logged && finished && !unit[u] && !late[u] && !jobSends[u] && way == ABSENT)
#endif
#endif
	:: atomic { receipt[0] != NONE && MAY_GO(0) -> receipt[0] = NONE }
	:: atomic { receipt[1] != NONE && MAY_GO(1) && !IS_CALL(1) -> receipt[1] = NONE }
	od
}

/* What must hold when nothing moves any more. */
proctype EndJudge() {
	timeout ->
	d_step {
		CLAIM(every_entry_ends, (!unit[0] || parked[0]) && (!unit[1] || parked[1]) && (way == ABSENT || way == HALF));
		CLAIM(a_group_is_done_or_undone, way == HALF ||
			(applied[0] == undone[0] && applied[1] == undone[1]) ||
			(applied[0] == 1 && applied[1] == 1 && undone[0] == 0 && undone[1] == 0))
	}
}

init {
	atomic {
		run End(); run Job(); run Others(); run EndJudge();
#ifdef SERVICE
		run Service()
#endif
	}
}

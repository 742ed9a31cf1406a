/*
 * A part that is a call of an HTTP service (group.pml): bedhttp there keeps the receipt f of the
 * call, and the receipt u of the call that undoes it. A handler may run on without its caller.
 */

#define SERVICE_PART 1
#define F receipt[SERVICE_PART]
#define DECLINED 3     /* a receipt, as NONE, THERE and VOID: its answer was no 2xx */

bit  flying;           /* the handler of the call runs, and holds f */
byte said;             /* u, with its answer */
#define DONE 1
#define NEVER 2        /* "nothing" was applied, and never will be */
#define ALREADY 3
bit  givenUp;          /* the judge's: an undo has committed */

byte lateUndo;         /* an undo that stands still: it claims what was seen (2), or not (1) */
bit  knows;            /* the application has seen a 2xx */
bit  delivered;        /* the log remembers one */
bit  old;              /* the call is about as old as the retention */

#define SEEN(who) (who == THE_APPLICATION && knows || who != THE_APPLICATION && delivered)

inline call_is_applied() {
	applied[SERVICE_PART]++; F = THERE;
	CLAIM(applied_at_most_once, applied[SERVICE_PART] <= 1);
	CLAIM(undone_is_never_applied, !givenUp);
	CLAIM(told_undone_is_undone, told != COMPENSATED)
}

inline call_ends(out) {
	if
	:: call_is_applied(); out = OK
	:: refusals > 0 -> refusals--; F = DECLINED; out = REFUSED
	fi
}

#ifdef M_CALL_DOES_NOT_LOOK_AT_THE_VOID
#define NOTHING_KEPT (F == NONE || F == VOID)
#else
#define NOTHING_KEPT (F == NONE)
#endif

inline call_arrives(out) {
	if
	:: flying -> out = BUSY
	:: !flying && NOTHING_KEPT ->
		if
		:: call_ends(out)
		:: faults > 0 -> faults--; flying = 1; out = NOANSWER
		fi
	:: !flying && !NOTHING_KEPT ->
		if
		:: F == THERE -> out = FOUND
		:: F == DECLINED -> out = REFUSED
		:: F == VOID -> out = VOIDED
		fi
	fi
}

inline exchange_call(out) {
	if
	:: call_arrives(out)
	:: faults > 0 -> faults--; out = NOANSWER
	:: faults > 0 -> faults--; call_arrives(out); out = NOANSWER
	:: faults > 0 && late[SERVICE_PART] < 1 -> faults--; late[SERVICE_PART]++; out = NOANSWER
	fi
}

/* ---- the undo: one transaction ---- */

#ifdef M_UNDO_DOES_NOT_WAIT
#define WAITS false
#else
#define WAITS flying
#endif
#ifdef M_UNDOS_RECEIPT_IS_NOT_KEPT
#define REPLAYED_TO(u) false
#else
#define REPLAYED_TO(u) (u && said != 0)
#endif
#ifdef M_AGE_IS_NOT_LOOKED_AT
#define TOO_OLD false
#else
#define TOO_OLD old
#endif
#ifdef M_ABSENCE_IS_NEVER_APPLIED
#define CONTRADICTED(seen) false
#else
#define CONTRADICTED(seen) (F == NONE && seen)
#endif
#ifdef M_DECLINED_IS_UNDONE
#define TO_UNDO (F == THERE || F == DECLINED)
#else
#define TO_UNDO (F == THERE)
#endif

inline answer_undo(u, word, out) {
	givenUp = 1; out = OK;
	if
	:: u ->
		CLAIM(an_undo_has_one_answer, said == 0 || said == word);
		said = word
	:: else
	fi
}

inline handle_undo(u, out) {
	if
	:: undone[SERVICE_PART]++;
		CLAIM(undone_at_most_once, undone[SERVICE_PART] <= applied[SERVICE_PART]);
		CLAIM(told_done_is_never_undone, told != DELIVERED);
		answer_undo(u, DONE, out);
		if
#ifndef M_UNDONE_CALL_IS_NOT_VOID
		:: F = VOID
#endif
#ifdef M_VOID_AFTER_THE_UNDOS_COMMIT
		:: faults > 0 -> faults--; out = NOANSWER
#endif
#ifdef M_UNDONE_CALL_IS_NOT_VOID
		:: skip
#endif
		fi
	/* It is rolled back whole. */
	:: refusals > 0 -> refusals--; out = REFUSED
#ifdef M_FAILED_UNDO_IS_KEPT
	:: faults > 0 -> faults--; F = VOID; givenUp = 1; out = NO
#else
	:: faults > 0 -> faults--; out = NO
#endif
	fi
}

/* u: under the group's key, or under an operator's own. */
inline undo_call_arrives(u, seen, out) {
	if
	:: REPLAYED_TO(u) -> out = OK
#ifdef M_UNDO_DOES_NOT_LOOK_AT_THE_CALL
	:: !REPLAYED_TO(u) -> handle_undo(u, out)
#else
	:: !REPLAYED_TO(u) && WAITS -> out = BUSY
	:: !REPLAYED_TO(u) && !WAITS ->
		if
		:: F == VOID -> answer_undo(u, ALREADY, out)
		:: F != VOID && (TOO_OLD || CONTRADICTED(seen)) -> out = REFUSED /* forgotten */
		:: F != VOID && !TOO_OLD && !CONTRADICTED(seen) ->
			if
			:: TO_UNDO -> handle_undo(u, out)
			:: !TO_UNDO -> F = VOID; answer_undo(u, NEVER, out)
			fi
		fi
#endif
	fi
}

inline exchange_undo_call(seen, out) {
	if
	:: undo_call_arrives(1, seen, out)
	:: faults > 0 -> faults--; out = NOANSWER
	:: faults > 0 -> faults--; undo_call_arrives(1, seen, out); out = NOANSWER
	:: faults > 0 && !lateUndo -> faults--; lateUndo = 1 + seen; out = NOANSWER
	fi
}

/* ---- around ---- */

#define CALL_UNDER_WAY (flying || late[SERVICE_PART] || lateUndo || unit[SERVICE_PART] || sends[SERVICE_PART] || jobSends[SERVICE_PART])

proctype Service() {
	byte ignored;
end_service:
	do
	:: atomic { flying -> flying = 0; call_ends(ignored); ignored = 0 }
	:: atomic { flying -> flying = 0 } /* it failed, and is rolled back */
	:: atomic { late[SERVICE_PART] > 0 && !flying && NOTHING_KEPT -> late[SERVICE_PART]--; flying = 1 }
	:: atomic { late[SERVICE_PART] > 0 -> late[SERVICE_PART]-- }
	:: atomic { lateUndo -> undo_call_arrives(1, lateUndo - 1, ignored); lateUndo = 0; ignored = 0 }
	:: atomic { lateUndo -> lateUndo = 0 }
	/* An operator undoes the call by hand. */
	:: atomic { operations > 0 && (way == TURNED || way == HALF) -> operations--; undo_call_arrives(0, delivered, ignored); ignored = 0 }
#ifdef FORGETS
	:: atomic { logged && !old -> old = 1 }
	/* Its purge asks no caller. */
	:: atomic { old && !CALL_UNDER_WAY && F != NONE -> F = NONE }
	:: atomic { old && !CALL_UNDER_WAY && said -> said = 0 }
	/* It has lost what its retention promises, and its caller knows better. */
	:: atomic { delivered && finished && !CALL_UNDER_WAY && faults > 0 && F != NONE -> faults--; F = NONE; said = 0 }
#endif
	od
}

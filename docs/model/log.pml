/* What the log's database does with what arrives, and the exchanges with it. */

inline put_entry(u) {
	d_step {
		if
		:: log[u].st == ABSENT ->
			if
			:: logged[u] -> STEP(comes_back)
#ifdef HOME
			:: else -> STEP(logged_within)
#else
			:: else -> STEP(logged)
#endif
			fi;
			log[u].st = WRITER; log[u].token = WRITERS_TOKEN; log[u].tries = 0;
#ifdef HOME
			/* It is its writer's, without a lease: anybody may take it. */
			CLAIM(rows_and_entries_commit_together, home);
			log[u].st = WAITING;
#ifdef M_WITHIN_WITHOUT_DOUBT
			log[u].doubt = 0;
#else
			log[u].doubt = EXACTLY_ONCE;
#endif
#else
#ifdef M_NEW_ENTRY_WITHOUT_DOUBT
			log[u].doubt = 0;
#else
			log[u].doubt = 1;
#endif
#endif
			logged[u] = 1
		:: else /* ON CONFLICT DO NOTHING */
		fi
	}
}

inline take_entry(u) {
	log[u].st = ABSENT; log[u].token = 0; log[u].doubt = 0; log[u].tries = 0;
	CLAIM(gone_is_explained, applied[u] > 0 || no[u] || voided[u] || discarded[u] || MET(u))
}

inline remove_arrives(u, t, again, late, out) {
	if
	:: HELD_TO_REMOVE(u, t) -> take_entry(u); out = OK
	/* A removal that is repeated finds its work done, while the lease was its own. */
#ifdef M_GONE_IS_REMOVED_WHENEVER
	:: log[u].st == ABSENT -> out = OK
	:: log[u].st != ABSENT && !HELD_TO_REMOVE(u, t) -> out = LOST
#else
	:: !HELD_TO_REMOVE(u, t) && log[u].st == ABSENT && again && !late -> out = OK
	:: !HELD_TO_REMOVE(u, t) && !(log[u].st == ABSENT && again && !late) -> out = LOST
#endif
	fi
}

inline release_arrives(u, t, inDoubt, park, count, out) {
	if
	:: HELD_TO_RELEASE(u, t) ->
		log[u].token = 0; log[u].doubt = inDoubt;
		if
		:: count && log[u].tries < JOB_TRIES -> log[u].tries++
		:: else
		fi;
		log[u].st = (park -> PARKED : WAITING);
		CLAIM(parked_without_doubt_is_not_applied, !(EXACTLY_ONCE && park && !inDoubt && applied[u] > 0));
		out = OK
	:: else -> out = LOST
	fi
}

inline exchange_remove(u, t, again, late, out) {
	atomic {
		if
		:: remove_arrives(u, t, again, late, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; remove_arrives(u, t, again, late, out); out = NOANSWER
		:: faults > 0 && lateRemove[u] == 0 -> faults--; lateRemove[u] = t; out = NOANSWER
		fi
	}
}

inline exchange_release(u, t, inDoubt, park, count, out) {
	atomic {
		if
		:: release_arrives(u, t, inDoubt, park, count, out)
		:: faults > 0 -> faults--; out = NOANSWER
		:: faults > 0 -> faults--; release_arrives(u, t, inDoubt, park, count, out); out = NOANSWER
		fi
	}
}

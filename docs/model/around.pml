/* What goes on around a unit: the network, time, an operator, the purge. */

proctype Around(byte u) {
	byte ignored;
end_around:
	do
	/* What stood still arrives, or never does. */
	:: atomic { lateAttempt[u] > 0 -> lateAttempt[u]--; attempt_arrives(u, ignored); ignored = 0 }
	:: atomic { lateAttempt[u] > 0 -> lateAttempt[u]-- }
	:: atomic { lateVoid[u] > 0 && writing[u] == 0 -> lateVoid[u]--; void_arrives(u, ignored); ignored = 0 }
	:: atomic { lateVoid[u] > 0 -> lateVoid[u]-- }
	:: atomic { lateRemove[u] != 0 -> remove_arrives(u, lateRemove[u], 0, 0, ignored); lateRemove[u] = 0; ignored = 0 }
	:: atomic { lateRemove[u] != 0 -> lateRemove[u] = 0 }
	:: atomic { u == 0 && lateInsert -> put_all(); lateInsert = 0 }
	:: atomic { u == 0 && lateInsert -> lateInsert = 0 }
	:: atomic { writing[u] == ORPHAN_COMMIT -> writing[u] = 0; apply(u) }
	:: atomic { writing[u] == ORPHAN || writing[u] == ORPHAN_COMMIT -> writing[u] = 0; STEP(receipt_rolled_back) }

	/* A lease ends: of an owner that is gone, or under one that stands still. */
	:: atomic { sent && !over[u] && !done[u] && faults > 0 -> faults--; over[u] = 1;
		if
		:: log[u].token == WRITERS_TOKEN && log[u].st == WRITER -> log[u].st = WAITING; STEP(writers_lease_ends)
		:: log[u].token == WRITERS_TOKEN && log[u].st == BEHIND -> log[u].st = WAITING; STEP(lease_ends_behind)
		:: else
		fi }
#ifndef M_LEASE_OF_THE_DEAD_STAYS
	:: atomic { (done[u] || over[u]) && log[u].token == WRITERS_TOKEN && log[u].st == WRITER -> log[u].st = WAITING; STEP(writers_lease_ends) }
#endif
	:: atomic { (done[u] || over[u]) && log[u].token == WRITERS_TOKEN && log[u].st == BEHIND -> log[u].st = WAITING; STEP(lease_ends_behind) }
	:: atomic { log[u].st == JOB && !HAS(0, u) && !OTHER_HAS(u) -> log[u].st = WAITING; STEP(jobs_lease_ends) }
	:: atomic { jobHas[0] && jobUnit[0] == u && !jobOver[0] && faults > 0 -> faults--; jobOver[0] = 1;
		if :: log[u].st == JOB && log[u].token == jobToken[0] -> log[u].st = WAITING; STEP(jobs_lease_ends) :: else fi }
#if JOBS > 1
	:: atomic { jobHas[1] && jobUnit[1] == u && !jobOver[1] && faults > 0 -> faults--; jobOver[1] = 1;
		if :: log[u].st == JOB && log[u].token == jobToken[1] -> log[u].st = WAITING; STEP(jobs_lease_ends) :: else fi }
#endif

#ifdef HOME
	/* Who works without a lease for long takes one. */
	:: atomic { go && sure && !over[u] && !done[u] && log[u].token == WRITERS_TOKEN && log[u].st == WAITING -> log[u].st = WRITER; log[u].doubt = 1; taken[u] = 1; STEP(taken_within) }
#ifndef M_END_DOES_NOT_LOOK
	:: atomic { go && sure && !over[u] && !done[u] && log[u].token != WRITERS_TOKEN -> over[u] = 1 }
#endif
#endif
#ifdef M_LOG_LOSES_WHAT_IT_TOOK
	:: atomic { log[u].st == WRITER && faults > 0 -> faults--; log[u].st = ABSENT; log[u].token = 0; log[u].doubt = 0; log[u].tries = 0 }
#endif

	/* Crashes. */
	:: atomic { u == 0 && !dead && faults > 0 -> faults--; dead = 1 }
	:: atomic { u == 0 && !jobDead[0] && jobHas[0] && faults > 0 -> faults--; jobDead[0] = 1 }
#if JOBS > 1
	:: atomic { u == 0 && !jobDead[1] && jobHas[1] && faults > 0 -> faults--; jobDead[1] = 1 }
#endif

	/* An operator, who is refused what is leased. */
	:: atomic { operations > 0 && log[u].st == PARKED -> operations--; log[u].st = WAITING; log[u].tries = 0; STEP(retried_parked) }
	:: atomic { operations > 0 && log[u].st == WAITING -> operations--; log[u].token = 0; log[u].tries = 0; STEP(retried_waiting) }
	:: atomic { operations > 0 && log[u].st == WAITING -> operations--; log[u].st = PARKED; log[u].token = 0; STEP(parked_waiting);
		CLAIM(parked_without_doubt_is_not_applied, !(EXACTLY_ONCE && !log[u].doubt && applied[u] > 0)) }
	:: atomic { operations > 0 && log[u].st == PARKED -> operations--; discarded[u] = 1; take_entry(u); STEP(discarded_parked) }
	:: atomic { operations > 0 && log[u].st == WAITING -> operations--; discarded[u] = 1; take_entry(u); STEP(discarded_waiting) }

	/* The retention ends behind everything that was under way when it began. */
	:: atomic { gone[u] && !old[u] && RETENTION_MAY_END(u) -> old[u] = 1 }
	od
}

/* attempt.PurgeReceipts: a page of receipts, a question to the log, and what
 * follows. */
proctype Purge(byte u) {
	bit missing;
	bit wasGone;
	bit wasOld;
end_purge:
	do
#ifdef M_GONE_IS_NOT_NOTED
	:: atomic { receipt[u] != NONE && gone[u] ->
#else
	:: atomic { receipt[u] != NONE && ((gone[u] && old[u]) || (log[u].st == ABSENT && !gone[u]) || (log[u].st != ABSENT && gone[u])) ->
#endif
			wasGone = gone[u]; wasOld = old[u] };
		missing = (log[u].st == ABSENT);
#ifdef M_PURGE_DOES_NOT_ASK
		missing = 1;
#endif
		atomic {
			if
			:: receipt[u] == NONE
#ifdef M_RETENTION_FROM_THE_RECEIPT
			:: receipt[u] != NONE && missing -> receipt[u] = NONE; gone[u] = 0; old[u] = 0; answered[u] = 0; STEP(purged)
			:: receipt[u] != NONE && !missing
#else
			:: receipt[u] != NONE && missing && wasGone && wasOld && gone[u] && old[u] ->
				receipt[u] = NONE; gone[u] = 0; old[u] = 0; answered[u] = 0; STEP(purged)
			:: receipt[u] != NONE && missing && !wasGone && !gone[u] -> gone[u] = 1; old[u] = 0; STEP(gone_noted)
			:: receipt[u] != NONE && !missing && wasGone -> gone[u] = 0; old[u] = 0; STEP(gone_withdrawn)
			:: else
#endif
			fi;
			missing = 0; wasGone = 0; wasOld = 0
		}
	od
}

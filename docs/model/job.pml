/* A job: asyncjob. */

#ifdef M_LOOK_DOES_NOT_KEEP_ANEW
#define LOOK_KEEPS_ANEW(u, out) skip
#else
#define LOOK_KEEPS_ANEW(u, out) keep_anew(u, out)
#endif

#ifdef KEY
#define LOOK_MEETS(u) met[u] = met[u] || firsts[u]
#else
#define LOOK_MEETS(u) skip
#endif

#define MAY_CLAIM(u) (log[u].st == WAITING && lateRemove[u] != JOBS_TOKEN(j, flip))
#ifdef M_CLAIM_OF_WHAT_IS_LEASED
#undef MAY_CLAIM
#define MAY_CLAIM(u) (log[u].st == WAITING || log[u].st == JOB || log[u].st == WRITER)
#endif

inline claim(unit) {
	u = unit; jobUnit[j] = unit; jobHas[j] = 1; jobOver[j] = 0;
	doubt = log[unit].doubt; tries = log[unit].tries;
	log[unit].st = JOB; log[unit].token = JOBS_TOKEN(j, flip); jobToken[j] = JOBS_TOKEN(j, flip);
#ifndef M_CLAIMED_WITHOUT_DOUBT
	log[unit].doubt = 1;
#endif
	flip = 1 - flip;
	STEP(claimed);
	if
	:: skip
	:: faults > 0 -> faults--; goto idle /* its answer is lost: nobody knows */
	fi
}

proctype Job(byte j) {
	byte out = 0;
	byte u = 0;
	byte tries = 0;
	bit doubt = 0;
	bit found = 0;
	bit again = 0;
	bit parks = 0;
	bit counts = 0;
	bit flip = 0;
	bit newDoubt = 0;
	do
	:: {
		skip;
idle:
		atomic { jobHas[j] = 0; out = 0; u = 0; tries = 0; doubt = 0; found = 0; again = 0; parks = 0; counts = 0; newDoubt = 0; jobUnit[j] = 0; jobToken[j] = 0; jobOver[j] = 0 };
end_idle:
		if
		:: atomic { MAY_CLAIM(0) -> claim(0) }
#if UNITS > 1
		:: atomic { MAY_CLAIM(1) -> claim(1) }
#endif
		fi;
#if !defined(RECEIPTS) && defined(LOCALTX)
		parks = 1; newDoubt = 1; goto verdict;
#endif
		/* claimed.attend */
		if
		:: atomic { jobOver[j] -> goto idle }
		:: atomic { !jobOver[j] -> jobSending[j] = 1 }
		fi;
#ifdef LOCALTX
#ifdef M_JOB_RUNS_WHAT_MUST_NOT_RUN
		exchange_attempt(u, out, 2 + j);
#else
		exchange_void(u, out);
#endif
#else
		exchange_attempt(u, out, 2 + j);
#endif
		jobSending[j] = 0;

		/* claimed.judge */
		if
		:: jobOver[j] -> goto idle
		:: else
		fi;
		if
		:: out == OK -> goto delivered
#ifdef M_MET_RECEIPT_IS_PUSHED_BACK
		:: out == FOUND -> newDoubt = doubt
#else
		:: IS_THERE(out) -> found = 1; goto delivered
#endif
		:: out == ANSWERED ->
			exchange_remove(u, JOBS_TOKEN(j, 1 - flip), again, jobOver[j], out);
			if :: out == OK -> STEP(job_removes_answered) :: else fi;
			goto idle
		:: out == VOIDED -> atomic { parks = 1; newDoubt = 0 }
		:: out == BUSY -> newDoubt = doubt
		:: out == REFUSED ->
#ifdef M_JOB_REMOVES_REFUSED
			exchange_remove(u, JOBS_TOKEN(j, 1 - flip), again, jobOver[j], out); goto idle
#else
			atomic { parks = 1; newDoubt = doubt; counts = 1 }
#endif
		:: out == NO || out == NOANSWER ->
			atomic {
				newDoubt = doubt || out == NOANSWER; counts = 1;
#ifdef M_JOB_FORGETS_A_MAYBE
				newDoubt = doubt;
#endif
				if
				:: tries + 1 >= JOB_TRIES -> parks = 1
				:: else
				fi;
#ifdef M_PARKED_AS_NOT_APPLIED
				if :: parks -> newDoubt = 0 :: else fi;
#endif
			};
			if
			:: atomic { parks && newDoubt && EXACTLY_ONCE && receipt[u] == THERE -> LOOK_MEETS(u); found = 1; out = FOUND; LOOK_KEEPS_ANEW(u, out); goto delivered }
			:: else
			fi
		fi;

verdict:
		do
		:: !jobOver[j] ->
			exchange_release(u, JOBS_TOKEN(j, 1 - flip), newDoubt, parks, counts, out);
			if
			:: out == NOANSWER
			:: out == OK && parks -> STEP(job_parks); goto idle
			:: out == OK && !parks && counts -> STEP(job_fails); goto idle
			:: out == OK && !parks && !counts -> STEP(job_pushes_back); goto idle
			:: out == LOST -> goto idle
			fi
		:: jobOver[j] -> goto idle
		od;

delivered:
		do
		:: exchange_remove(u, JOBS_TOKEN(j, 1 - flip), again, jobOver[j], out);
			if
			:: out == NOANSWER -> again = 1
			:: else -> break
			fi
		:: again && jobOver[j] -> goto idle
		od;
		if
		:: out == OK -> STEP(job_removes_delivered)
		:: else -> goto idle
		fi;
#if defined(RECEIPTS) && !defined(KEY)
		if
#ifdef M_JOB_ERASES_IN_DOUBT
		:: atomic { !found -> receipt[u] = NONE; STEP(erased) }
#else
		:: atomic { !doubt && !found -> receipt[u] = NONE; STEP(erased) }
#endif
		:: skip
		fi;
#endif
		goto idle
	} unless { jobDead[j] ->
		atomic {
			if
			:: jobSending[j] && WHOLE && REPLAYABLE && lateAttempt[u] < MOST_LATE -> lateAttempt[u]++
			:: jobSending[j] && lateVoid[u] < 1 && !REPLAYABLE -> lateVoid[u]++
			:: writing[u] == 2 + j -> writing[u] = ORPHAN
			:: skip
			fi;
			if :: writing[u] == 2 + j -> writing[u] = ORPHAN_COMMIT :: else fi;
			jobSending[j] = 0; jobDead[j] = 0; jobHas[j] = 0; out = 0
		}
	}
	od
}

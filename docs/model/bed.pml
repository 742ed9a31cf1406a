/*
 * The delivery protocol of docs/protocol.md and docs/exactly-once.md: one
 * application that writes one unit, or a staged group of one unit for each of
 * two data sources, jobs, an operator, the purge of receipts, and a network
 * that does its worst. docs/model/README.md says how to run it, what is bounded,
 * and what is left out.
 *
 * Every change of an entry or a receipt carries a STEP with the name that the
 * tables of docs/protocol.md give it; every promise is a CLAIM or an ltl.
 * M_... are mutants: faults put in on purpose, of docs/model/mutants.txt.
 */

/* ---- configuration (docs/model/configurations.txt) ---- */

#ifndef UNITS
#define UNITS 1        /* 2: a staged group over two data sources */
#endif
#ifndef JOBS
#define JOBS 2
#endif
#ifndef FAULTS
#define FAULTS 3       /* crashes, losses, stand-stills, leases that end under their owner */
#endif
#ifndef REFUSALS
#define REFUSALS 1     /* attempts that the target answers with no */
#endif
#ifndef OPERATIONS
#define OPERATIONS 1   /* retries, discards and parkings by an operator */
#endif
#ifndef SYNC_TRIES
#define SYNC_TRIES 1   /* retries in the caller's call */
#endif
#ifndef JOB_TRIES
#define JOB_TRIES 2    /* tries of the jobs before a unit is parked */
#endif
/* RECEIPTS    exactly once; without it at least once
 * STEPWISE    receipt and COMMIT are separate round trips: others wait at the receipt
 * LOCALTX     the unit is a local transaction that must not be run again
 * SOFT        inside a soft transaction: what is refused is parked
 * ALONGSIDE   entry and write leave together; ONFAILURE: the entry only after a failure
 * HOME        WithTx: COMMIT of the application's own transaction writes the entries
 * GROUP       a group with a way back, of a model of its own: group.pml
 * ORDER       order per key, of a model of its own: order.pml; WRITES of them
 * KEY         a request that is sent again under its key, when the receipt of the first
 *             one may be purged at any time; it needs STEPWISE, and no refusal
 */

#if defined(ALONGSIDE) || defined(ONFAILURE)
#define BEFORE 0
#else
#define BEFORE 1
#endif

/* ---- names ---- */

#define STEP(name)  c_code { static int seen; if (!seen) { seen = 1; printf("step: %s\n", #name); fflush(stdout); } }
#define CLAIM(name, holds) \
	if \
	:: (holds) \
	:: else -> c_code { printf("claim failed: %s\n", #name); fflush(stdout); }; assert(false) \
	fi

/* The states of an entry. One whose lease has run out is waiting, with the token
 * still in the row until somebody comes. */
#define ABSENT   0
#define WRITER   1     /* leased by the writer */
#define BEHIND   2     /* delivered, entry not removed yet */
#define WAITING  3     /* waiting */
#define JOB      4     /* leased by a job */
#define PARKED   5     /* parked */

/* The states of a receipt. */
#define NONE     0
#define THERE    1
#define VOID     2

/* How an exchange ended for who began it. */
#define OK       1
#define FOUND    2     /* the receipt is there */
#define REFUSED  3
#define NO       4     /* answered, not applied, another try may do */
#define VOIDED   5
#define ANSWERED 6     /* void, and the caller was told so */
#define BUSY     7     /* the receipt is being written: no try */
#define NOANSWER 8
#define LOST     9     /* the fence: somebody else's */
#define REPLAYED 10    /* the receipt of the first request under the key is there */

/* What the caller was told. */
#define NOTHING   0
#define DELIVERED 1
#define TOLD_NO   2
#define PENDING   3
#define NOTLOGGED 4
#define UNKNOWN   5    /* ErrUnknownOutcome */
#define PENDING_OR_GONE 6 /* ErrPending with txlog.ErrInDoubt */
#define TOLD_REPLAYED 7 /* delivered, by the answer to the first request under the key */

#define WRITERS_TOKEN 1
#define JOBS_TOKEN(j, flip) (2 + 2*(j) + (flip))

#ifdef GROUP
#include "group.pml"
#elif defined(ORDER)
#include "order.pml"
#else

/* ---- the log ---- */

typedef Entry { byte st; byte token; bit doubt; byte tries; };
Entry log[UNITS];

/* ---- the targets ---- */

#ifdef KEY
#define AT_FIRST 1
bit  firsts[UNITS] = 1; /* the receipt is the first request's */
bit  met[UNITS];       /* it was met, and kept anew */
#define FIRSTS(u) firsts[u]
#define MET(u) met[u]
#else
#define AT_FIRST 0
#define FIRSTS(u) false
#define MET(u) false
#endif
byte receipt[UNITS] = AT_FIRST;
bit  answered[UNITS];  /* in a void receipt: its caller was told */
bit  gone[UNITS] = AT_FIRST; /* log_gone: a purge found no entry */
bit  old[UNITS] = AT_FIRST; /* the retention is over */
byte writing[UNITS];   /* whose transaction holds the receipt, uncommitted */
#define ORPHAN   9     /* its client is gone: the server will roll it back */
#define ORPHAN_COMMIT 10 /* its COMMIT is still on its way */

/* ---- messages that stand still and may arrive at any time ---- */

byte lateAttempt[UNITS];
byte lateVoid[UNITS];
bit  lateInsert;
byte lateRemove[UNITS]; /* its token */

/* ---- who is at work ---- */

bit dead;              /* the application */
bit jobDead[JOBS];
bit sent;              /* an INSERT of the entries has left */
bit repeated;          /* AddRepeated */
byte inserted;         /* what became of it */
bit go;
bit over[UNITS];       /* the writer's lease has run out; it knows by its own clock */
#ifdef HOME
bit home;              /* the application's transaction is committed, with its own rows */
bit rolledBack;        /* it was rolled back before, and the session goes on */
byte rows;             /* of the entry, written in it */
#define ROWS     2
bit sure;              /* its COMMIT was answered */
bit taken[UNITS];      /* under a lease by now */
#ifdef M_REMOVED_WITHOUT_A_LEASE
#define LATE(u) over[u]
#else
#define LATE(u) (over[u] || !taken[u]) /* somebody else may have removed what is gone */
#endif
#else
#define LATE(u) over[u]
#endif
bit done[UNITS];       /* nobody in the application works on the unit any more */
bit jobHas[JOBS];
bit jobOver[JOBS];     /* the lease of what it claimed has run out */
byte jobUnit[JOBS];
byte jobToken[JOBS];

/* Between the look at the lease and the arrival of what is sent then. The
 * retention is longer than that lasts: that is the one thing that the protocol
 * takes from time (docs/exactly-once.md, "What is erased when"). */
bit sending[UNITS];
bit inserting;
bit jobSending[JOBS];

/* ---- what the judge remembers ---- */

byte applied[UNITS];
byte told[UNITS];
bit  voided[UNITS];
bit  no[UNITS];        /* refused for good: the entry goes for that */
bit  discarded[UNITS];
bit  logged[UNITS];    /* there was an entry */

byte faults = FAULTS;
byte refusals = REFUSALS;
byte operations = OPERATIONS;

#ifdef RECEIPTS
#define EXACTLY_ONCE 1
#else
#define EXACTLY_ONCE 0
#endif
#ifdef SOFT
#define KEEP_REFUSED 1
#else
#define KEEP_REFUSED 0
#endif
#ifdef STEPWISE
#define WHOLE 0        /* an attempt is one message */
#else
#define WHOLE 1
#endif
#ifdef LOCALTX
#define REPLAYABLE 0
#else
#define REPLAYABLE 1
#endif

#if JOBS > 1
#define JOB_SENDING(u) ((jobSending[0] && jobUnit[0] == u) || (jobSending[1] && jobUnit[1] == u))
#else
#define JOB_SENDING(u) (jobSending[0] && jobUnit[0] == u)
#endif
#define UNDER_WAY(u) (lateAttempt[u] || lateVoid[u] || lateInsert || inserting || writing[u] || sending[u] || JOB_SENDING(u))

#define HAS(j, u) (jobHas[j] && jobUnit[j] == u && jobToken[j] == log[u].token)
#if JOBS > 1
#define OTHER_HAS(u) HAS(1, u)
#else
#define OTHER_HAS(u) false
#endif
#ifdef M_RETENTION_0
#define RETENTION_MAY_END(u) true
#else
#ifdef TIGHT
#define RETENTION_MAY_END(u) (!UNDER_WAY(u) && (over[u] || done[u] || log[u].st != ABSENT))
#else
#define RETENTION_MAY_END(u) (!UNDER_WAY(u) && (over[u] || done[u]) && log[u].st == ABSENT)
#endif
#endif

#if defined(RECEIPTS) || defined(M_REFUSED_THOUGH_THE_ENTRY_MAY_COME_BACK)
#define MAY_COME_BACK false
#else
#define MAY_COME_BACK repeated
#endif

#define LEASED(u) (log[u].st == WRITER || log[u].st == BEHIND || log[u].st == JOB)
#ifdef M_REMOVE_WITHOUT_TOKEN
#define HELD_TO_REMOVE(u, t) (log[u].st != ABSENT)
#else
#define HELD_TO_REMOVE(u, t) (log[u].st != ABSENT && log[u].token == t)
#endif
#ifdef M_RELEASE_WITHOUT_TOKEN
#define HELD_TO_RELEASE(u, t) (log[u].st != ABSENT)
#else
#define HELD_TO_RELEASE(u, t) (log[u].st != ABSENT && log[u].token == t)
#endif

#include "log.pml"
#include "target.pml"
#include "application.pml"
#include "job.pml"
#include "around.pml"

/* What must hold when nothing moves any more. */
proctype Judge() {
	timeout ->
	d_step {
		CLAIM(every_entry_ends, (log[0].st == ABSENT || log[0].st == PARKED) && done[0]);
		CLAIM(accepted_is_explained, log[0].st != ABSENT || !logged[0] || applied[0] > 0 || no[0] || voided[0] || discarded[0] || MET(0));
		CLAIM(pending_is_kept, told[0] != PENDING || log[0].st != ABSENT || applied[0] > 0 || discarded[0] || MET(0));
#ifdef RECEIPTS
		CLAIM(receipts_go, receipt[0] == NONE || log[0].st == PARKED);
#endif
#if UNITS > 1
		CLAIM(every_entry_ends, (log[1].st == ABSENT || log[1].st == PARKED) && done[1]);
		CLAIM(accepted_is_explained, log[1].st != ABSENT || !logged[1] || applied[1] > 0 || no[1] || voided[1] || discarded[1]);
		CLAIM(pending_is_kept, told[1] != PENDING || log[1].st != ABSENT || applied[1] > 0 || discarded[1]);
		CLAIM(a_group_is_whole_or_nothing, (applied[0] > 0) == (applied[1] > 0) || log[0].st == PARKED || log[1].st == PARKED || discarded[0] || discarded[1]);
#endif
	}
}

init {
	atomic {
		run Job(0);
#if JOBS > 1
		run Job(1);
#endif
#ifdef ONFAILURE
		sending[0] = 1; go = 1;
#else
		run App();
#endif
		run Deliver(0);
		run Around(0);
#ifdef RECEIPTS
		run Purge(0);
#endif
#if UNITS > 1
		run Deliver(1);
		run Around(1);
#ifdef RECEIPTS
		run Purge(1);
#endif
#endif
#ifndef ENDS
		run Judge()
#endif
	}
}

#ifdef ENDS
/* With a fair scheduler, and after finitely many faults. */
ltl every_entry_ends_for_good { <> [] (done[0] && (log[0].st == ABSENT || log[0].st == PARKED)) }
#endif
#endif

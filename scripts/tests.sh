# shellcheck shell=bash
# The parts common to scripts that run tests.

# One test of each section of docs/guarantees.md about servers.
promises=(
	TestStatusFollowsAPendingWriteToItsEnd TestBedJobServesRealDatabases TestExactlyOnceSurvivesALostAnswer
	TestKeyLostAnswerIsReadFromTheReceipt TestHTTPResendGetsTheStoredResponseByteForByte
	TestStagedLoggedGroupIsDeliveredWithoutItsCaller TestEndAsksForTheReceiptOnceTheEntryIsGone TestGroupWaitsForItsLogToTurn
	TestSoftTransactionSpansDatabases TestUnansweredCommitIsDeliveredWholeByTheRetry
	TestWritesUnderAnOrderKeyAreDeliveredInTheirOrder TestNothingCommitsUnmetRows TestWriteOnKilledConnectionIsDeliveredOnce
	TestPoolGetsNoConnectionWithSessionState TestRawReachesTheDriversConnection TestJobStoresInstantsLikeTheWriter
	TestAPendingWriteIsTheJobsAtOnce TestNoLogLineHoldsAParametersValue
)
for test in "${promises[@]}"; do
	grep -q "^func $test(" internal/test/acceptance/*/*_test.go || { say "there is no $test any more: name another test of its promise"; exit 1; }
done

# each_promise: a pattern for these tests.
each_promise() { (IFS='|'; echo "^(${promises[*]})$"); }

# report: prints failures from the events of go test -json, and closes with the skipped tests and
# their reasons, the failed ones, and the counts.
report() {
	local format=pkgname-and-test-fails
	[[ " ${TESTFLAGS:-} " != *" -v "* ]] || format=standard-verbose
	go run gotest.tools/gotestsum@v1.13.0 --format "$format" --format-hide-empty-pkg --raw-command -- cat
}

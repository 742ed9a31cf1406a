// Package besteffort delivers a write by best efforts: it logs the write, runs it, and removes its
// entry. It retries a failed write, and hands an unsettled one over to the job. The caller's
// answer follows the rule of truth.
package besteffort

// Package besteffort delivers a write by best efforts: it logs it, has it run,
// and removes its entry. A write that failed is retried; one that cannot be
// ended here is handed over to the job. What the caller gets follows the
// rule of truth.
package besteffort

// Package attempt makes one attempt to deliver a unit. It drives a connection through the
// interfaces of its driver, leaves and reads receipts, and returns an outcome. The application's
// calls, their retries and the job all make their attempts here.
package attempt

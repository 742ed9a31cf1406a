// Package attempt makes one attempt to deliver a unit: it drives a connection
// through whatever interfaces its driver has, leaves and reads receipts, and says
// how the attempt ended. The application's calls, their retries and the job all
// make theirs here.
package attempt

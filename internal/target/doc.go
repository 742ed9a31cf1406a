// Package target reaches a data source in the session that an entry names, with the table of its
// receipts located. The application's writes, the job and operators' actions all come here, and
// get the same errors.
package target

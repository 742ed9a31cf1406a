// Package delivery holds the words that a database's own package needs to say
// what differs there: a [Dialect] reads errors ([Class]), checks values and runs
// what fits into one round trip ([Call]); a [Target] is a data source to deliver
// to. What is done with them is in bed's other packages.
package delivery

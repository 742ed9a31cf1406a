// Package delivery holds the interface between bed and a database's own package. A [Dialect]
// classifies errors ([Class]), checks values and runs the statements of one round trip
// ([Call]); a [Target] is a data source to deliver to. bed's other packages use them.
package delivery

// Package dialect holds the interface between bed and a database's own package. A [Dialect]
// classifies errors ([Class]), checks values and runs the statements of one round trip
// ([Call]).
package dialect

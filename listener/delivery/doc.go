// Package delivery holds [Target], a data source to deliver to. The packages of the databases
// make one from a DSN or from a driver's configuration.
package delivery

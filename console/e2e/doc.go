// Package e2e drives the console in a real browser, over real servers. It is a module
// of its own, so that the browser's driver is nobody's dependency.
package e2e

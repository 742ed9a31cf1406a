// Package upgrade tests that this version's job delivers what earlier versions logged, and that an
// earlier version's job delivers what this one logs. testdata holds logs of earlier versions.
package upgrade

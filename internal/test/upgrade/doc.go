// Package upgrade has this version's job deliver the entries of earlier versions, and an earlier
// version's job deliver the entries of this one. testdata holds logs of earlier versions.
package upgrade

// Package libraries is a module of its own for tests of bed with the libraries that applications use
// beside it. So none of them is in an application's module graph because of bed.
package libraries

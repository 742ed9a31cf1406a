// Package docs holds no code: its tests compare the documentation with the
// code that it describes.
package docs

// Package message publishes messages as bedsql writes rows, and consumes them exactly once. It is
// a local message table for any publisher of github.com/ThreeDotsLabs/watermill.
package message

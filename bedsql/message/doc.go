// Package message publishes messages as bedsql writes rows, and consumes them exactly
// once: a local message table, for any publisher of github.com/ThreeDotsLabs/watermill.
package message

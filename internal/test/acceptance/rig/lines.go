package rig

import (
	"bytes"
	"sync"

	"github.com/sirupsen/logrus"
)

// SecretValue is a parameter that servers are made to quote.
const SecretValue = "hunter2-at-the-till"

// LogLines collects log lines of every level.
type LogLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *LogLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *LogLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *LogLines) Logger() *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(l)
	logger.SetLevel(logrus.TraceLevel)
	return logger
}

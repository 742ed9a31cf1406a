//go:build !linux

package testdb

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

var errNotLinux = errors.New("private servers need Linux: run these tests in a container, or with -short")

func own(string, string) error                 { return errNotLinux }
func runAs(*exec.Cmd, string, string) error    { return errNotLinux }
func releaseSharedMemory(string)               {}
func (p *process) signal(syscall.Signal) error { return errNotLinux }
func (p *process) kill() error                 { return errNotLinux }
func (p *process) pause() error                { return errNotLinux }
func (p *process) resume() error               { return errNotLinux }

func startProcess(*exec.Cmd, *os.File, syscall.Signal) (*process, error) {
	return nil, errNotLinux
}

//go:build !linux

package testdb

import (
	"errors"
	"os/exec"
	"syscall"
)

var errNotLinux = errors.New("private servers need Linux: run these tests in a container, or with -short")

func supported() error                         { return errNotLinux }
func own(string, []string) error               { return errNotLinux }
func runAs(*exec.Cmd, string, []string) error  { return errNotLinux }
func releaseSharedMemory(string)               {}
func (p *process) signal(syscall.Signal) error { return errNotLinux }
func (p *process) kill() error                 { return errNotLinux }
func (p *process) pause() error                { return errNotLinux }
func (p *process) resume() error               { return errNotLinux }

func startProcess(*exec.Cmd, syscall.Signal) (*process, error) { return nil, errNotLinux }

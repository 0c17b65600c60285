//go:build unix

package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Claim keeps other processes from using a data folder until release is called or this process ends: two servers on one
// folder would spoil it.
func Claim(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "in-use"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim the data folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("the data folder %s is in use by another process: stop that one, or choose another folder (%w)", dir, err), f.Close())
	}
	return f.Close, nil
}

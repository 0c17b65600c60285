package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// LoadOrMake is [Load] that makes the file, with a random key of that id, if it is not there. Nobody else may read it.
func LoadOrMake(path, id string) (*Keyring, error) {
	k, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // it never fails
	if err := write(path, id+":"+base64.StdEncoding.EncodeToString(secret)+"\n"); err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return Load(path)
}

// write makes a file of mode 0600, all of it or none.
func write(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the error that matters is there already
	}
	return err
}

// Package kubebin finds and builds the program that is a Kubernetes cluster (controllers/kuberig).
//
// Kubernetes, etcd and kwok are compiled from their Go modules, because a bare machine has no other way to them. That takes
// minutes, so it is done once per version of the sources: the program is kept in .cache/kube, in a folder named after the
// sum of everything that it is made of.
package kubebin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	// Env names a program to be used instead of that of the cache.
	Env = "EVENKEEL_KUBE"

	module = "controllers/kuberig" // from the root of the repository
	name   = "evenkeel-kube"
)

// ErrMissing says that the program has not been built.
var ErrMissing = errors.New("needs a Kubernetes cluster: make kube builds one, once, in about ten minutes")

// Find returns the program, or ErrMissing.
func Find() (string, error) {
	if given := os.Getenv(Env); given != "" {
		if _, err := os.Stat(given); err != nil { //nolint:gosec // whoever sets it runs it
			return "", fmt.Errorf("%s: %w", Env, err)
		}
		return given, nil
	}
	place, err := locate()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(place.program); err != nil {
		return "", ErrMissing
	}
	return place.program, nil
}

// place is where things are.
type place struct {
	source  string // folder of the module
	program string // whether or not it is there
}

// locate finds the repository around the working directory, and sums up what the program is made of.
func locate() (place, error) {
	here, err := os.Getwd()
	if err != nil {
		return place{}, err
	}
	root := here
	for {
		if _, err := os.Stat(filepath.Join(root, module, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(root)
		if parent == root {
			return place{}, fmt.Errorf("neither %s nor a folder above it has %s: run this in a clone of Evenkeel", here, module)
		}
		root = parent
	}
	source := filepath.Join(root, module)
	sum, err := sumOf(source)
	if err != nil {
		return place{}, err
	}
	return place{source, filepath.Join(root, ".cache", "kube", sum, name)}, nil
}

// sumOf is a sum of the version of Go, the flags of the build, go.mod, go.sum and the sources.
func sumOf(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH, buildFlags)
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := filepath.Base(path)
		if base != "go.mod" && base != "go.sum" && !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // of the repository
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, path)
		fmt.Fprintln(sum, filepath.ToSlash(rel), len(text))
		sum.Write(text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:12], err
}

package kubebin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// reportEvery is how often the build says how far it is.
const reportEvery = 10 * time.Second

// buildFlags leave out what nobody here looks at; -v names each package when it is compiled.
var buildFlags = []string{"-v", "-trimpath", "-tags=grpcnotrace,notest"}

// Build builds the program unless it is there, and returns where it is. It says on out what it does.
func Build(ctx context.Context, out io.Writer) (string, error) {
	if found, err := Find(); !errors.Is(err, ErrMissing) {
		return found, err
	}
	place, err := locate()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(out, `building Kubernetes, etcd and kwok from their Go modules into %s
There is no other way to a real Kubernetes API on a machine that has Go and nothing else. It is done once, and takes about
ten minutes on two cores, a good 2 GB of memory and 4 GB of disk.
`, place.program)
	began := time.Now()
	version, err := kubernetesVersion(place.source)
	if err != nil {
		return "", err
	}
	folder := filepath.Dir(place.program)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", err
	}
	// Whoever looks finds a whole program or none, also if two are built at once.
	unfinished, err := os.MkdirTemp(folder, "unfinished-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(unfinished) }() // what is left is of no use
	product := filepath.Join(unfinished, name)
	if err := compile(ctx, out, place.source, product, version); err != nil {
		return "", err
	}
	if err := os.Rename(product, place.program); err != nil {
		return "", err
	}
	fmt.Fprintf(out, "built in %s\n", time.Since(began).Round(time.Second))
	return place.program, nil
}

// compile runs go build.
func compile(ctx context.Context, out io.Writer, source, product, version string) error {
	args := slices.Concat([]string{"build", "-o", product}, buildFlags, []string{"-ldflags=" + linkerFlags(version, time.Now()), "."})
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // of the constants above
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its compilers
	cmd.WaitDelay = reportEvery
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	complaint := follow(pipe, out)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("go build in %s: %w\n%s", source, err, complaint)
	}
	return nil
}

// packageLine is what go build -v prints when it compiles a package.
var packageLine = regexp.MustCompile(`^[a-z0-9][\w.~/-]*$`)

// follow reads what go build says, tells from time to time how far it is, and returns the rest, which are errors.
func follow(said io.Reader, out io.Writer) string {
	lines := make(chan string)
	go func() { // ends with what it reads, as does the loop below
		defer close(lines)
		for in := bufio.NewScanner(said); in.Scan(); {
			lines <- in.Text()
		}
	}()
	report := time.NewTicker(reportEvery)
	defer report.Stop()
	began := time.Now()
	compiled, at := 0, "listing what there is to do"
	var rest []string
	for {
		select {
		case <-report.C:
			fmt.Fprintf(out, "  %6s  %4d packages compiled, now %s\n", time.Since(began).Round(time.Second), compiled, at)
		case line, more := <-lines:
			switch {
			case !more:
				return strings.Join(rest[max(0, len(rest)-30):], "\n")
			case strings.HasPrefix(line, "go: downloading "):
				at = strings.TrimPrefix(line, "go: ")
			case strings.HasSuffix(line, module) && packageLine.MatchString(line):
				at = "linking"
			case packageLine.MatchString(line):
				compiled++
				at = line
			default:
				rest = append(rest, line)
			}
		}
	}
}

// kubernetesVersion reads it from go.mod.
func kubernetesVersion(source string) (string, error) {
	text, err := os.ReadFile(filepath.Join(source, "go.mod")) //nolint:gosec // of the repository
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^(?:require )?\s*k8s\.io/kubernetes (v\S+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s/go.mod does not require k8s.io/kubernetes", source)
	}
	return string(bytes.TrimSpace(found[1])), nil
}

// linkerFlags tell Kubernetes its version, which its own build does the same way.
func linkerFlags(version string, built time.Time) string {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	flags := []string{"-s", "-w"}
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			fmt.Sprintf("-X %s.gitVersion=%s", p, version),
			fmt.Sprintf("-X %s.gitMajor=%s", p, parts[0]),
			fmt.Sprintf("-X %s.gitMinor=%s", p, parts[1]),
			fmt.Sprintf("-X %s.buildDate=%s", p, built.UTC().Format(time.RFC3339)))
	}
	return strings.Join(flags, " ")
}

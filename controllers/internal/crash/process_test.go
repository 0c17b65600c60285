package crash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/controllers/internal/proc"
)

// patience is for how long anything may take that takes seconds at the most.
const patience = 5 * time.Minute

// start starts one of the programs of TestMain and waits until it is up. Its lines go to heard.
func start(ctx context.Context, role string, env []string, heard func(line []byte)) (*proc.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(slices.Concat(os.Environ(), env), roleEnv+"="+role, "GORACE=halt_on_error=1")
	return proc.Start(ctx, role, cmd, upLine, heard)
}

// dies arms a point of the API and waits until it has died there.
func dies(ctx context.Context, api *proc.Process, at point, nth int) error {
	if err := api.Tell(fmt.Sprintf("%d %s\n", nth, at)); err != nil {
		return err
	}
	if err := api.Dies(ctx); err != nil {
		return fmt.Errorf("the point %q: has what is watched there changed? %w", at, err)
	}
	return nil
}

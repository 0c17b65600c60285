package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers metrics, as the components' own mains do
	_ "k8s.io/component-base/metrics/prometheus/version"  // likewise
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	nodestages "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podstages "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	kwokcmd "sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"

	"github.com/evenkeel-io/evenkeel/controllers/kuberig/internal/cluster"
)

// components are the programs that a cluster is made of, by name. Each reads os.Args, and returns its exit code.
var components = map[string]func() int{
	cluster.Etcd: func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	cluster.APIServer:         func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	cluster.ControllerManager: func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	cluster.Scheduler:         func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	cluster.Kwok:              kwok,
}

// kwok is what kwok's own main does.
func kwok() int {
	forgetFlags()
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, logger := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err != nil {
		logger.Error("Init config flags", "err", err)
		return 1
	}
	command := kwokcmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	if err := command.ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		logger.Error("Execute exit", "err", err)
		return 1
	}
	return 0
}

// kubectl is what kubectl's own main does.
func kubectl() int {
	forgetFlags()
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)) // fails only on what is not a number
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints it and exits
	}
	return 0
}

// forgetFlags drops the flags that the packages of Kubernetes' servers have registered for the whole process: their
// --version is in the way of those who have one of their own.
func forgetFlags() { pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError) }

// stages tell kwok what becomes of nodes and pods: all at once what kubelets would do, except for pods that are held.
func stages() (string, error) {
	const conditions = "matchExpressions:\n"
	if !strings.Contains(podstages.DefaultPodReady, "    "+conditions) {
		return "", errors.New("kwok's stage pod-ready has another form than expected: look at stages() in components.go")
	}
	held := fmt.Sprintf("%s    - key: '.metadata.annotations[%q]'\n      operator: 'DoesNotExist'\n", conditions, cluster.HoldAnnotation)
	ready := strings.Replace(podstages.DefaultPodReady, conditions, held, 1)
	return strings.Join([]string{
		nodestages.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease,
		ready, podstages.DefaultPodComplete, podstages.DefaultPodDelete,
	}, "\n---\n"), nil
}

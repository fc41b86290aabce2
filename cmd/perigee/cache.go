package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/perigee-llm/perigee/internal/cache/manager"
)

// cacheCmd runs the Cache Manager until a signal ends it.
type cacheCmd struct {
	Config    string       `help:"YAML file; flags go before what is in it." type:"existingfile"`
	Socket    string       `help:"Path that engines connect to (/run/perigee/cache.sock)."`
	PoolBytes manager.Size `help:"Shared memory for pages: bytes, or a number with KiB, MiB, GiB or TiB."`
	Instances int          `help:"How many engines share it, each with an equal part (1)."`
	HugePages bool         `help:"Take pages of 2 MiB if the kernel has them reserved."`
	Admin     string       `help:"host:port of the admin listener: /healthz, /metrics, /status, /explain, /flush, /evict (none)."`

	Events string `help:"host:port of the socket that tells gateways what can be restored; replay and snapshot are the next two ports (none)."`

	signalsForTesting chan os.Signal // nil in production: the process's own
}

// Help shows what a run looks like.
func (cacheCmd) Help() string {
	return `Keeps pages of KV state for the engines of this host, in memory that it shares with them. Prints one line on stdout when it
can be connected to. SIGTERM and SIGINT end it: engines then compute what they would have restored. SIGHUP changes nothing. Linux only.

Examples:
  perigee cache --socket /tmp/cache.sock --pool-bytes 8GiB
  perigee cache --config /etc/perigee/cache.yaml --admin 127.0.0.1:9091
  curl -s 'http://127.0.0.1:9091/explain?session=1&op=42'      why that query was not served`
}

// read returns the configuration of the file and the flags; it has printed what is wrong with it, and then the error is not nil.
func (c *cacheCmd) read(rc *runContext) (manager.Config, error) {
	var cfg manager.Config
	if c.Config != "" {
		data, err := os.ReadFile(c.Config)
		if err == nil {
			cfg, err = manager.ParseConfig(data)
		}
		if err != nil {
			return cfg, exitError{code: exitUsage, msg: c.Config + ": " + strings.Join(strings.Fields(err.Error()), " ")}
		}
	}
	set(&cfg.Socket, c.Socket)
	set(&cfg.PoolBytes, c.PoolBytes)
	set(&cfg.Instances, c.Instances)
	set(&cfg.HugePages, c.HugePages)
	set(&cfg.Admin, c.Admin)
	set(&cfg.Events.Listen, c.Events)
	faults := cfg.Faults()
	for _, f := range faults {
		fmt.Fprintln(rc.stderr, f)
	}
	if len(faults) > 0 {
		return cfg, exitError{code: exitUsage, msg: "the Cache Manager was not started: its configuration has faults"}
	}
	return cfg, nil
}

// set puts a flag that was given in the place of what a file says.
func set[T comparable](dst *T, flag T) {
	var none T
	if flag != none {
		*dst = flag
	}
}

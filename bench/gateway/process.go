package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a child that serves until stop.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	log  *os.File
}

// running are the children, whose CPU time is not that of other processes.
var running struct {
	sync.Mutex
	pids []int
}

// launch starts argv, with its stderr and what it prints in a file of logDir.
func launch(name, logDir string, argv []string) (*process, error) {
	p, _, err := begin(name, logDir, argv, false)
	return p, err
}

// startProcess starts argv, with its stderr in a file of logDir, and returns the first line that it prints: the sign
// that it serves. The process is returned also with an error, as long as it was started.
func startProcess(ctx context.Context, name, logDir string, argv []string) (*process, string, error) {
	p, lines, err := begin(name, logDir, argv, true)
	if err != nil {
		return nil, "", err
	}
	select {
	case line := <-lines:
		return p, line, nil
	case <-p.done:
		return p, "", fmt.Errorf("%s ended at once; its log is %s", name, p.log.Name())
	case <-time.After(20 * time.Second):
		return p, "", fmt.Errorf("%s printed no line within 20 s; its log is %s", name, p.log.Name())
	case <-ctx.Done():
		return p, "", ctx.Err()
	}
}

// begin starts a child. If it tells where it serves, lines gets what it prints first.
func begin(name, logDir string, argv []string, tells bool) (p *process, lines <-chan string, err error) {
	log, err := os.Create(filepath.Join(logDir, name+".log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	var stdout io.Reader = strings.NewReader("")
	if tells {
		cmd.Stdout = nil
		if stdout, err = cmd.StdoutPipe(); err != nil {
			return nil, nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	running.Lock()
	running.pids = append(running.pids, cmd.Process.Pid)
	running.Unlock()
	p = &process{name: name, cmd: cmd, done: make(chan struct{}), log: log}
	first := make(chan string, 1)
	go func() {
		defer close(p.done)
		sc := bufio.NewScanner(stdout)
		for n := 0; sc.Scan(); n++ {
			if n == 0 {
				first <- sc.Text()
			}
		}
		_ = cmd.Wait() // how it ended is in its log
	}()
	return p, first, nil
}

// stop ends the child: it may drain for a second, then it is killed.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	p.log.Close()
}

// usageNow is what /proc says at one moment; CPU times in seconds.
type usageNow struct {
	target float64 // of the process under test
	rssMB  float64
	own    float64 // of this process and all its children
	busy   float64 // of the whole machine
}

// ticks is the unit of the machine's CPU times in /proc: 100 a second on every Linux that Go runs on.
const ticks = 100

// usage asks the system; figures that cannot be had (another system, an ended process) are 0.
func usage(p *process) usageNow {
	var u usageNow
	running.Lock()
	pids := append([]int{os.Getpid()}, running.pids...)
	running.Unlock()
	for _, pid := range pids {
		s, _ := cpuSeconds(pid)
		u.own += s
	}
	u.busy, _ = machineBusy()
	if p != nil {
		u.target, _ = cpuSeconds(p.cmd.Process.Pid)
		u.rssMB, _ = residentMB(p.cmd.Process.Pid)
	}
	return u
}

func residentMB(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(text)
	if len(f) < 2 {
		return 0, errors.New("short /proc/PID/statm")
	}
	pages, err := strconv.ParseFloat(string(f[1]), 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}

// machineBusy is the time that all cores together were not idle.
func machineBusy() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var sum float64
	for i, s := range strings.Fields(line) {
		n, err := strconv.ParseFloat(s, 64)
		// Fields 1 to 8 are user, nice, system, idle, iowait, irq, softirq and steal; the rest is counted in user.
		if err == nil && i >= 1 && i <= 8 && i != 4 && i != 5 {
			sum += n
		}
	}
	return sum / ticks, nil
}

// freePort returns a port that was free a moment ago.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

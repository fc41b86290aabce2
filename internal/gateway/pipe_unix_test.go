//go:build unix

package gateway_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
)

// TestReloadFromPipe: a file that a read would wait for is refused: nothing would end the wait, and a shutdown waits for the reload.
// A gateway may be started from one, as with a shell's process substitution.
func TestReloadFromPipe(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	text := fmt.Sprintf(reloadable, engines[0].URL(), engines[1].URL())
	l := startLive(t, time.Hour, map[string]string{configFile: text})
	refusal := func(name string) {
		t.Helper()
		if said, err := l.reload(); !errors.Is(err, gateway.ErrRefused) || !strings.Contains(said, name+": is not a file") {
			t.Errorf("%v:\n%s", err, said)
		}
	}
	for _, pipe := range []string{"cert.pem", "key.pem"} {
		for _, name := range []string{"cert.pem", "key.pem"} {
			l.write(name, "")
		}
		asPipe(t, l.path(pipe))
		l.write(configFile, strings.Replace(text, "server: {", "server: {tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}, ", 1))
		refusal(pipe)
		if err := os.Remove(l.path(pipe)); err != nil {
			t.Fatal(err)
		}
	}
	asPipe(t, l.path(configFile))
	refusal(configFile)
}

func asPipe(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

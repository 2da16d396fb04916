package drivers

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// startForebay starts a server in memory, or a proxy of another server. Environment variables name the binary.
func startForebay(t *testing.T, arguments ...string) string {
	t.Helper()
	command := append([]string{"serve", "--mongodb-listen", "127.0.0.1:0"}, arguments...)
	return start(t, exec.Command(os.Getenv("FOREBAY"), command...), `(mongodb://[0-9.]+:[0-9]+)`)
}

// startTables starts a server in memory that also serves PostgreSQL's protocol, and returns the connection string for
// it.
func startTables(t *testing.T, folder string) string {
	t.Helper()
	command := exec.Command(os.Getenv("FOREBAY"), "serve", "--memory", "--mongodb-listen", "127.0.0.1:0",
		"--postgres-listen", "127.0.0.1:0", "--tables", folder)
	return start(t, command, `(postgresql://[0-9.]+:[0-9]+/forebay)`)
}

// startFerretDB starts an empty FerretDB on SQLite.
func startFerretDB(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	command := exec.Command(os.Getenv("FERRETDB"), "--handler=sqlite", "--sqlite-url=file:"+folder+"/",
		"--state-dir="+folder, "--listen-addr=127.0.0.1:0", "--telemetry=disable", "--debug-addr=-")
	return "mongodb://" + start(t, command, `Listening on TCP ([0-9.]+:[0-9]+)`)
}

// start runs a server until the end of the test and returns its address, which the server prints. It keeps
// reading the output, because a full pipe would block the server.
func start(t *testing.T, command *exec.Cmd, ready string) string {
	t.Helper()
	output, err := command.StdoutPipe()
	check(t, err)
	command.Stderr = command.Stdout
	check(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if found := regexp.MustCompile(ready).FindStringSubmatch(lines.Text()); found != nil {
			go func() {
				for lines.Scan() {
				}
			}()
			return found[1]
		}
	}
	t.Fatalf("%v ended before it listened", command)
	return ""
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package app_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The README's walk works when pasted: its blocks are run as they stand, one
// after the other in one shell, against a server with the settings it names. The
// two READMEs differ in words only.
func TestWalkOfTheReadmeWorksWhenPasted(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_RETRY_LADDER=1s,1s")
	p := in.serve()
	_, token := in.setUp() // in the browser it is read off the page
	listen := freeAddr(t)
	script := "set -eu\n" + strings.Join(walk(t, "../README.md"), "\n") + "\nwait\n"
	for old, local := range map[string]string{
		"http://127.0.0.1:8080": p.base,
		"http://127.0.0.1:9099": "http://" + listen,
		"webhooks listen":       "webhooks listen --addr " + listen,
		"paste-the-token-here":  token,
	} {
		if !strings.Contains(script, old) {
			t.Errorf("the walk does not mention %s", old)
		}
		script = strings.ReplaceAll(script, old, local)
	}
	here := filepath.Join(filepath.Dir(in.dir), "checkout")
	if err := os.MkdirAll(filepath.Join(here, "bin"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary(t), filepath.Join(here, "bin", "deskcomm")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), "bash", "-c", script)
	cmd.Dir = here
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + here}, in.env...)
	log := &transcript{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var over bool
	var result error
	dbtest.Eventually(t, "the walk has ended:\n"+script, func() bool {
		select {
		case result = <-ended:
			over = true
		default:
		}
		return over
	})
	// The last command kills the receiver, which is what the shell waits for.
	text := log.String()
	for _, want := range []string{
		`"status":"processed"`, `answered 500`, "answering 200", "signature valid", "Oi, tem no M?",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the walk ended with %v and never said %q:\n%s", result, want, text)
		}
	}
	// The repaired receiver may miss one more attempt while it starts.
	if _, after, _ := strings.Cut(text, "answering 200"); !strings.Contains(after, "message.received attempt") {
		t.Errorf("nothing arrived after the replay:\n%s", text)
	}
}

func TestBothReadmesWalkTheSameWay(t *testing.T) {
	t.Parallel()
	english, portuguese := walk(t, "../README.md"), walk(t, "../README.pt-BR.md")
	if len(english) != len(portuguese) {
		t.Fatalf("the walks have %d and %d blocks", len(english), len(portuguese))
	}
	words := strings.NewReplacer(
		"RECEPTOR", "RECEIVER", "MORTA", "DEAD", "ASSINATURA", "SIGNATURE",
		"cole-o-token-aqui", "paste-the-token-here", "um-segredo-nosso", "a-secret-we-share",
		"o-gateway-assina-com-isto", "the-gateway-signs-with-this", "o receptor foi consertado", "the receiver is repaired",
	)
	for i := range english {
		if pt := words.Replace(portuguese[i]); pt != english[i] {
			t.Errorf("block %d differs in more than words:\n%s\n%s", i+1, english[i], pt)
		}
	}
}

func TestBothReadmesListEveryScope(t *testing.T) {
	t.Parallel()
	want := "`" + strings.Join(db.Scopes(), "`, `") + "`.\n"
	for _, file := range []string{"../README.md", "../README.pt-BR.md"} {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		if unwrapped := strings.ReplaceAll(string(text), ",\n`", ", `"); !strings.Contains(unwrapped, want) {
			t.Errorf("%s does not list the scopes %s", file, want)
		}
	}
}

// walk returns the shell blocks of the README's walk, without the one that starts
// the server.
func walk(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for s := range strings.SplitSeq(string(text), "\n## ") {
		if !strings.Contains(s, "webhook_secret") {
			continue
		}
		blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(s, -1)
		var list []string
		for _, b := range blocks[1:] {
			list = append(list, b[1])
		}
		if len(list) < 4 {
			t.Fatalf("the walk of %s has %d blocks", file, len(list))
		}
		return list
	}
	t.Fatalf("%s has no walk", file)
	return nil
}

package app_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	passwordFile    = "postgres.password"
	databaseURLFile = "database.url"
)

// secretsIn returns the files of a folder by their names.
func secretsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(text)
	}
	return files
}

func TestSecretsMakesAPasswordAndAConnectionStringWithIt(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	dir := filepath.Join(in.dir, "made", "secrets")
	out, errs, code := in.run("", "secrets", "--dir", dir, "--database-host", "db:6432", "--database-name", "crm", "--database-user", "ana")
	if code != 0 {
		t.Fatalf("secrets = exit %d: %s", code, errs)
	}
	files := secretsIn(t, dir)
	password := strings.TrimSpace(files[passwordFile])
	if len(password) < 22 || url.QueryEscape(password) != password { // 128 bits in base64
		t.Errorf("the password has %d characters, want 22 or more that need no quoting", len(password))
	}
	want := map[string]string{
		passwordFile:    password + "\n",
		databaseURLFile: "postgres://ana:" + password + "@db:6432/crm\n",
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for name := range want {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, info, err)
		}
	}
	if strings.Contains(out+errs, password) {
		t.Error("the password is printed")
	}
	other := filepath.Join(in.dir, "other")
	if _, errs, code := in.run("", "secrets", "--dir", other); code != 0 || secretsIn(t, other)[passwordFile] == files[passwordFile] {
		t.Errorf("in another folder = exit %d, %q; want 0 and another password", code, errs)
	}
}

func TestSecretsCompletesAndKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	const ownURL = "postgres://me:p%20w%2F1@elsewhere:5433/mine?sslmode=verify-full\n"
	cases := map[string]struct{ before, after map[string]string }{
		"all of it": {
			before: map[string]string{passwordFile: "p w/1\n", databaseURLFile: ownURL},
			after:  map[string]string{passwordFile: "p w/1\n", databaseURLFile: ownURL},
		},
		"a password, written by hand without a newline": {
			before: map[string]string{passwordFile: "p w/1"},
			after:  map[string]string{passwordFile: "p w/1", databaseURLFile: "postgres://deskcomm:p%20w%2F1@postgres/deskcomm\n"},
		},
		"a password, and what a killed run left": {
			before: map[string]string{passwordFile: "pw\n", "." + databaseURLFile + "-1": "postgres://deskcomm:p"},
			after: map[string]string{
				passwordFile: "pw\n", databaseURLFile: "postgres://deskcomm:pw@postgres/deskcomm\n",
				"." + databaseURLFile + "-1": "postgres://deskcomm:p",
			},
		},
		"a connection string": {
			before: map[string]string{databaseURLFile: ownURL},
			after:  map[string]string{passwordFile: "p w/1\n", databaseURLFile: ownURL},
		},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := onPrivate(t)
			writeSecrets(t, in.dir, tt.before)
			for range 2 {
				if _, errs, code := in.run("", "secrets", "--dir", in.dir); code != 0 {
					t.Fatalf("secrets = exit %d: %s", code, errs)
				}
				if diff := cmp.Diff(tt.after, secretsIn(t, in.dir)); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestSecretsRefusesWhatItCannotCompleteAndChangesNothing(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		before map[string]string
		code   int
		says   string
	}{
		"two passwords": {
			map[string]string{passwordFile: "s3cr3t-1\n", databaseURLFile: "postgres://deskcomm:s3cr3t-2@postgres/deskcomm\n"},
			3, "different passwords",
		},
		"a password alone that is empty":           {map[string]string{passwordFile: "\n"}, 1, passwordFile + " is empty"},
		"a connection string that has no password": {map[string]string{databaseURLFile: "postgres://s3cr3t@postgres/deskcomm"}, 1, databaseURLFile},
		"a connection string that is none":         {map[string]string{databaseURLFile: "postgres://a:s3cr3t@h:port/%"}, 1, databaseURLFile},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := onPrivate(t)
			writeSecrets(t, in.dir, tt.before)
			_, errs, code := in.run("", "secrets", "--dir", in.dir)
			if code != tt.code || !strings.Contains(errs, tt.says) || strings.Contains(errs, "s3cr3t") {
				t.Errorf("exit %d, %q; want %d, a word about %q and no secret", code, errs, tt.code, tt.says)
			}
			if diff := cmp.Diff(tt.before, secretsIn(t, in.dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSecretsMadeByTwentyAtOnceAreOneSet(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, errs, code := in.run("", "secrets", "--dir", in.dir); code != 0 {
				t.Errorf("secrets = exit %d: %s", code, errs)
			}
		})
	}
	all.Wait()
	files := secretsIn(t, in.dir)
	password := strings.TrimSpace(files[passwordFile])
	want := map[string]string{passwordFile: password + "\n", databaseURLFile: "postgres://deskcomm:" + password + "@postgres/deskcomm\n"}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestSecretsSaysWhoMustOwnAFolderItCannotWrite(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	user := os.Geteuid()
	// Beside the folder, where another user may run it.
	program := filepath.Join(filepath.Dir(dir), "deskcomm")
	if err := os.Link(binary(t), program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), program, "secrets", "--dir", dir)
	cmd.Env = []string{"DESKCOMM_LOG_FORMAT=json"}
	if user == 0 { // who may write anywhere
		user = 65532
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	out, err := cmd.CombinedOutput()
	if want := fmt.Sprintf("must belong to user %d", user); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), want) {
		t.Errorf("%v, %q; want exit 1 and %q", err, out, want)
	}
}

func writeSecrets(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

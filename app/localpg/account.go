package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// account is the system user that Postgres runs as. Its zero value is the user
// of this process.
type account struct {
	name string
	cred *syscall.Credential // nil: no change of user
}

// chooseAccount picks the user for a cluster: the owner of an existing one, else
// postgres, else nobody. Only root can, and has to, change the user.
func chooseAccount(cluster string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if uid, ok := ownerOf(cluster); ok && uid != 0 {
		// A number without a name came with a backup of another machine: ownTree.
		if owner, err := user.LookupId(strconv.Itoa(uid)); err == nil {
			return accountOf(owner)
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
			continue
		}
		if err != nil {
			return account{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		return accountOf(found)
	}
	return account{}, errors.New("postgres refuses to run as root, and there is no user postgres or nobody to run it as")
}

func accountOf(u *user.User) (account, error) {
	groups, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("list groups of user %s: %w", u.Username, err)
	}
	cred := &syscall.Credential{}
	for target, id := range map[*uint32]string{&cred.Uid: u.Uid, &cred.Gid: u.Gid} {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("read ids of user %s: %w", u.Username, err)
		}
		*target = uint32(n)
	}
	for _, id := range groups {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("read groups of user %s: %w", u.Username, err)
		}
		cred.Groups = append(cred.Groups, uint32(n))
	}
	return account{name: u.Username, cred: cred}, nil
}

// other reports whether Postgres runs as another user than this process.
func (a account) other() bool { return a.cred != nil }

// uid is the user id that owns the cluster's files.
func (a account) uid() int {
	if a.cred == nil {
		return os.Geteuid()
	}
	return int(a.cred.Uid)
}

// own gives one file or folder to the account.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Lchown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// ownTree gives a folder and all in it to the account unless it has it: Postgres
// refuses a cluster that root copied here.
func (a account) ownTree(dir string) error {
	if uid, ok := ownerOf(dir); a.cred == nil || !ok || uid == a.uid() {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, a.own(path))
	})
}

// blockedAt returns the first folder on the way to dir, dir included, that the
// account may not pass through, or "". It reads permission bits only.
func (a account) blockedAt(dir string) string {
	if a.cred == nil {
		return ""
	}
	var way []string
	for at := dir; ; at = filepath.Dir(at) {
		way = append(way, at)
		if at == filepath.Dir(at) {
			break
		}
	}
	for _, folder := range slices.Backward(way) {
		info, err := os.Stat(folder)
		if err != nil || !a.mayEnter(info) {
			return folder
		}
	}
	return ""
}

func (a account) mayEnter(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	mode := info.Mode().Perm()
	switch {
	case stat.Uid == a.cred.Uid:
		return mode&0o100 != 0
	case stat.Gid == a.cred.Gid || slices.Contains(a.cred.Groups, stat.Gid):
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// ownerOf returns the user id of a file's owner, without following a link.
func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

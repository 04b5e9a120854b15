package db

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/deskcomm/deskcomm/bus"
)

// MasterKeySize is the length of a master key in bytes.
const MasterKeySize = 32

// ErrNoMasterKey is the refusal to store or read a secret without the key.
var ErrNoMasterKey = errors.New("no master key is configured")

// box encrypts what must not lie readable in the database or its backups.
type box struct {
	aead        cipher.AEAD
	fingerprint string
}

func newBox(key []byte) (box, error) {
	if len(key) != MasterKeySize {
		return box{}, fmt.Errorf("the master key must have %d bytes", MasterKeySize)
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "deskcomm secrets at rest", 32)
	if err != nil {
		return box{}, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return box{}, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return box{}, fmt.Errorf("make cipher: %w", err)
	}
	mark, err := hkdf.Key(sha256.New, key, nil, "deskcomm master key fingerprint", 8)
	if err != nil {
		return box{}, fmt.Errorf("derive fingerprint: %w", err)
	}
	return box{aead: aead, fingerprint: hex.EncodeToString(mark)}, nil
}

// seal encrypts plain for one place: a ciphertext moved to another row or column
// does not open there.
func (b box) seal(plain []byte, place string) ([]byte, error) {
	if b.aead == nil {
		return nil, ErrNoMasterKey
	}
	return b.aead.Seal(nil, nil, plain, []byte(place)), nil
}

func (b box) open(sealed []byte, place string) ([]byte, error) {
	if b.aead == nil {
		return nil, ErrNoMasterKey
	}
	plain, err := b.aead.Open(nil, nil, sealed, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", place, err)
	}
	return plain, nil
}

// hashToken is what is kept of a bearer token. The tokens are 256 random bits,
// so a plain hash cannot be searched.
func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// randomBytes returns n bytes that nobody can guess.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

const claimMasterKeySQL = `
	update installation
	   set master_key_fingerprint = @fingerprint
	 where master_key_fingerprint is null or master_key_fingerprint = @fingerprint
	returning true`

// ClaimMasterKey ties the database to this process's master key at the first
// start, and refuses every other key afterwards: it could read no secret that is
// stored, and what it stored nobody else could read.
func (d *DB) ClaimMasterKey(ctx context.Context) error {
	if d.box.aead == nil {
		return ErrNoMasterKey
	}
	var mine bool
	err := scan(ctx, d.pool, claimMasterKeySQL, named{"fingerprint": d.box.fingerprint}, &mine)
	if err = translate(err); errors.Is(err, bus.ErrNotFound) {
		return errors.New("DESKCOMM_MASTER_KEY is not the key that this database's secrets were encrypted with; " +
			"give every process of the installation the same key")
	}
	return wrap("check master key", err)
}

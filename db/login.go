package db

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// CheckPassword says whether a new password is one that we take.
func CheckPassword(password string) error {
	if n := utf8.RuneCountInString(password); n < 8 || n > 200 {
		return bus.Invalid("password", "must have 8 to 200 characters")
	}
	return nil
}

// hashing bounds how many passwords are hashed at once: each takes 64 MiB and
// several cores, and whoever reaches the login page may ask for it.
var hashing = make(chan struct{}, 2) //nolint:gochecknoglobals // memory is the process's, not a DB's

// HashPassword checks a new password and returns what is kept of it. Like all
// that hashes passwords it waits while others are at it.
func HashPassword(password string) (string, error) {
	if err := CheckPassword(password); err != nil {
		return "", err
	}
	hashing <- struct{}{}
	defer func() { <-hashing }()
	hash, err := argon2id.CreateHash(password, argon2id.DefaultParams)
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return hash, nil
}

// VerifyPassword reports whether password is the one that hash was made of.
func VerifyPassword(password, hash string) (bool, error) {
	hashing <- struct{}{}
	defer func() { <-hashing }()
	same, err := argon2id.ComparePasswordAndHash(password, hash)
	if err != nil {
		return false, fmt.Errorf("verify password: %w", err)
	}
	return same, nil
}

// VerifyNothing takes as long as VerifyPassword. It is called when there is no
// user, so that time does not tell which e-mail addresses have one.
func VerifyNothing(password string) {
	hashing <- struct{}{}
	defer func() { <-hashing }()
	argon2id.CreateHash(password, argon2id.DefaultParams) //nolint:errcheck // only its work counts
}

// Credentials is what a login is checked against.
type Credentials struct {
	UserID         uuid.UUID
	PasswordHash   string
	SessionVersion int
}

const credentialsSQL = `
	select id as user_id, password_hash, session_version from users where lower(email) = @email`

// Credentials returns those of the user with an e-mail address, in whatever case
// it is written, or bus.ErrNotFound.
func (d *DB) Credentials(ctx context.Context, email string) (Credentials, error) {
	email, err := cleanEmail(email)
	if err != nil {
		return Credentials{}, fmt.Errorf("find user: %w", bus.ErrNotFound) // such an address is nobody's
	}
	c, err := one[Credentials](ctx, d.pool, credentialsSQL, named{"email": email})
	return c, wrap("find user", err)
}

// triesForgotten is how long after the last try its count starts anew.
const triesForgotten = 15 * time.Minute

// throttle slows the tries to log in that are counted under one key.
type throttle struct {
	key     []byte
	free    int           // so many tries do not wait
	longest time.Duration // later ones wait 1 s, 2 s, 4 s … up to this
}

// throttles are the rules that slow tries to log in as email from address. Who
// tries passwords waits longer and longer; who does so from many addresses slows
// the owner down by seconds, but does not lock them out.
func throttles(email, address string) []throttle {
	email = strings.ToLower(email)
	return []throttle{
		{key: throttleKey(email, network(address)), free: 5, longest: time.Minute},
		{key: throttleKey(email), free: 50, longest: 10 * time.Second},
	}
}

func throttleKey(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:]
}

// network is what counts as one place: an IPv4 address, or the /64 that an IPv6
// subscriber gets at least. What is no address is one place together.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		withPort, err := netip.ParseAddrPort(address)
		if err != nil {
			return ""
		}
		ip = withPort.Addr()
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

// wait is how long the next try waits after failures tries.
func (t throttle) wait(failures int) time.Duration {
	if failures < t.free {
		return 0
	}
	const doublings = 6 // 64 s, beyond the longest wait
	return min(time.Second<<min(failures-t.free, doublings), t.longest)
}

// lockTriesSQL locks the rows in the order of their keys, making those that are
// missing, so that tries at once take turns and none waits for another in a ring.
const lockTriesSQL = `
	insert into login_throttle (key)
	select key from unnest(@keys::bytea[]) as k (key) order by key
	on conflict (key) do update set updated_at = login_throttle.updated_at
	returning key,
	          case when updated_at > clock_timestamp() - @forgotten::interval then failures else 0 end as failures,
	          greatest(allowed_at - clock_timestamp(), interval '0') as wait`

const countTriesSQL = `
	update login_throttle t
	   set failures = n.failures, allowed_at = clock_timestamp() + n.wait, updated_at = clock_timestamp()
	  from unnest(@keys::bytea[], @failures::int[], @waits::interval[]) as n (key, failures, wait)
	 where t.key = n.key`

// BeginLogin counts a try to log in as email from address, before the password
// is looked at. After too many tries it returns how long to wait: the try is
// refused then, and not counted. address is an IP address, with or without port.
func (d *DB) BeginLogin(ctx context.Context, email, address string) (wait time.Duration, err error) {
	rules := throttles(email, address)
	keys := throttleKeys(rules)
	type tries struct {
		Key      []byte
		Failures int
		Wait     time.Duration
	}
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		counts, err := collect[tries](ctx, tx, lockTriesSQL, named{"keys": keys, "forgotten": triesForgotten})
		if err != nil {
			return err
		}
		failures := make(map[string]int, len(counts))
		wait = 0
		for _, c := range counts {
			failures[string(c.Key)] = c.Failures + 1
			wait = max(wait, c.Wait)
		}
		if wait > 0 {
			return nil
		}
		counted, waits := make([]int, len(rules)), make([]time.Duration, len(rules))
		for i, r := range rules {
			counted[i] = failures[string(r.key)]
			waits[i] = r.wait(counted[i])
		}
		_, err = tx.Exec(ctx, countTriesSQL, named{"keys": keys, "failures": counted, "waits": waits})
		return err
	})
	return wait, wrap("count login", err)
}

func throttleKeys(rules []throttle) [][]byte {
	keys := make([][]byte, len(rules))
	for i, r := range rules {
		keys[i] = r.key
	}
	return keys
}

const forgetTriesSQL = `
	with mine as (
	    select key from login_throttle where key = any(@keys) order by key for update
	)
	delete from login_throttle t using mine where t.key = mine.key`

// LoggedIn forgets the tries of email and audits the login.
func (d *DB) LoggedIn(ctx context.Context, user uuid.UUID, email, address, requestID string) error {
	return translate(d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, forgetTriesSQL, named{"keys": throttleKeys(throttles(email, address))}); err != nil {
			return wrap("forget login tries", err)
		}
		return insertAudit(ctx, tx, uuid.NullUUID{}, userActor(user, email, requestID), auditEntry{
			action: "user.logged_in", resourceType: "user", resourceID: user, metadata: map[string]any{"network": network(address)},
		})
	}))
}

// LoggedOut audits a logout.
func (d *DB) LoggedOut(ctx context.Context, user uuid.UUID, email, requestID string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return insertAudit(ctx, d.pool, uuid.NullUUID{}, userActor(user, email, requestID),
		auditEntry{action: "user.logged_out", resourceType: "user", resourceID: user})
}

func userActor(user uuid.UUID, email, requestID string) Actor {
	return Actor{Kind: ActorUser, ID: uuid.NullUUID{UUID: user, Valid: true}, Name: strings.ToLower(email), RequestID: requestID}
}

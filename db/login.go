package db

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
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

// hashing bounds how many passwords are hashed at once: each takes 64 MiB and a
// core, and whoever reaches the login page may ask for it.
var hashing = make(chan struct{}, 2) //nolint:gochecknoglobals // memory is the process's, not a DB's

// queueing bounds how many wait for it, some seconds at most.
var queueing = make(chan struct{}, 32) //nolint:gochecknoglobals // memory is the process's, not a DB's

// hashingSlot waits until a password may be hashed. It returns bus.ErrUnavailable
// at once when too many wait already, and when ctx ends.
func hashingSlot(ctx context.Context) (free func(), err error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("hash password: %w: %w", bus.ErrUnavailable, ctx.Err())
	}
	select {
	case queueing <- struct{}{}:
	default:
		return nil, fmt.Errorf("hash password: %w: too many at once", bus.ErrUnavailable)
	}
	select {
	case hashing <- struct{}{}:
		return func() { <-hashing; <-queueing }, nil
	case <-ctx.Done():
		<-queueing
		return nil, fmt.Errorf("hash password: %w: %w", bus.ErrUnavailable, ctx.Err())
	}
}

// passwordParams are what a hash costs. Constants: were they the machine's, a hash
// made before a move would take another time than that of nobody.
func passwordParams() *argon2id.Params {
	return &argon2id.Params{Memory: 64 * 1024, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32}
}

// HashPassword checks a new password and returns what is kept of it. Like all
// that hashes passwords it waits while others are at it.
func HashPassword(ctx context.Context, password string) (string, error) {
	if err := CheckPassword(password); err != nil {
		return "", err
	}
	free, err := hashingSlot(ctx)
	if err != nil {
		return "", err
	}
	defer free()
	hash, err := argon2id.CreateHash(password, passwordParams())
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return hash, nil
}

// VerifyPassword reports whether password is the one that hash was made of.
func VerifyPassword(ctx context.Context, password, hash string) (bool, error) {
	free, err := hashingSlot(ctx)
	if err != nil {
		return false, err
	}
	defer free()
	same, err := argon2id.ComparePasswordAndHash(password, hash)
	if err != nil {
		return false, fmt.Errorf("verify password: %w", err)
	}
	return same, nil
}

// VerifyNothing takes as long as VerifyPassword. It is called when there is no
// user, so that time does not tell which e-mail addresses have one.
func VerifyNothing(ctx context.Context, password string) error {
	free, err := hashingSlot(ctx)
	if err != nil {
		return err
	}
	defer free()
	argon2id.CreateHash(password, passwordParams()) //nolint:errcheck // only its work counts
	return nil
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
	shared  bool          // a login that succeeds takes back its own try only
}

// Origin is where a try to log in comes from: an IP address, with or without port,
// and what the browser keeps of its last login as the same e-mail, if it had one.
type Origin struct {
	Address string
	Device  string
}

// throttles are the rules that slow tries to log in as email. Who tries passwords
// waits longer and longer: for one e-mail from one network, for one e-mail from
// anywhere, and for any e-mails from one network. A browser that has logged in as
// email before is counted by itself: whoever tries all day takes no try from it.
func (d *DB) throttles(email string, from Origin) []throttle {
	email = strings.ToLower(email)
	if id, known := d.knownDevice(email, from.Device); known {
		return []throttle{{key: throttleKey("device", email, id), free: 5, longest: time.Minute}}
	}
	return []throttle{
		{key: throttleKey("email from network", email, network(from.Address)), free: 5, longest: time.Minute},
		{key: throttleKey("email", email), free: 50, longest: 10 * time.Second},
		{key: throttleKey("network", network(from.Address)), free: 100, longest: 10 * time.Second, shared: true},
	}
}

// NewDevice returns what a browser keeps of a login as email, to be known at the
// next one. Only this installation can make it.
func (d *DB) NewDevice(email string) (string, error) {
	sealed, err := d.box.seal(randomBytes(16), devicePlace(email))
	return base64.RawURLEncoding.EncodeToString(sealed), err
}

func (d *DB) knownDevice(email, device string) (id string, known bool) {
	sealed, err := base64.RawURLEncoding.DecodeString(device)
	if err != nil || device == "" {
		return "", false
	}
	plain, err := d.box.open(sealed, devicePlace(email))
	return string(plain), err == nil
}

func devicePlace(email string) string { return "device:" + strings.ToLower(email) }

// throttleKey begins with what is counted, so that no e-mail is taken for another
// kind of key.
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

// BeginLogin counts a try to log in as email, before the password is looked at.
// After too many tries it returns how long to wait: the try is refused then, and
// not counted.
func (d *DB) BeginLogin(ctx context.Context, email string, from Origin) (wait time.Duration, err error) {
	rules := d.throttles(email, from)
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
	    select key from login_throttle where key = any(@keys::bytea[] || @shared::bytea[]) order by key for update
	), taken_back as (
	    update login_throttle t
	       set failures = greatest(t.failures - 1, 0)
	      from mine
	     where t.key = mine.key and t.key = any(@shared)
	)
	delete from login_throttle t using mine where t.key = mine.key and t.key = any(@keys)`

// LoggedIn forgets the tries of email and audits the login.
func (d *DB) LoggedIn(ctx context.Context, user uuid.UUID, email string, from Origin, requestID string) error {
	var own, shared []throttle
	for _, t := range d.throttles(email, from) {
		if t.shared {
			shared = append(shared, t)
		} else {
			own = append(own, t)
		}
	}
	return translate(d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, forgetTriesSQL, named{"keys": throttleKeys(own), "shared": throttleKeys(shared)}); err != nil {
			return wrap("forget login tries", err)
		}
		return insertAudit(ctx, tx, uuid.NullUUID{}, userActor(user, email, requestID), auditEntry{
			action: "user.logged_in", resourceType: "user", resourceID: user, metadata: map[string]any{"network": network(from.Address)},
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

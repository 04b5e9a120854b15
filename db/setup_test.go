package db_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestSetupsAtOnceMakeOneInstallation(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	link, err := d.OpenSetup(t.Context())
	if err != nil || link == "" {
		t.Fatalf("OpenSetup() = %q, %v, want a link", link, err)
	}
	var mu sync.Mutex
	var done, refused int
	var setups sync.WaitGroup
	for range 8 {
		setups.Go(func() {
			_, err := d.SetUp(t.Context(), db.NewInstallation{
				Organization: "Loja", Email: "ana@example.com", PasswordHash: "a hash", Scopes: db.Scopes(),
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				done++
			case errors.Is(err, bus.ErrConflict):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	setups.Wait()
	if done != 1 || refused != 7 {
		t.Errorf("%d setups were done and %d refused, want 1 and 7", done, refused)
	}
	w := world{T: t, db: d, url: url}
	for table, want := range map[string]int{"organizations": 1, "users": 1, "user_organizations": 1, "platform_admins": 1, "api_tokens": 1} {
		if n := w.count("select count(*) from " + table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	if open, err := d.CheckSetup(t.Context(), link); err != nil || open {
		t.Errorf("the setup link still opens after the setup: %t, %v", open, err)
	}
	if again, err := d.OpenSetup(t.Context()); err != nil || again != "" {
		t.Errorf("OpenSetup() after the setup = %q, %v, want none", again, err)
	}
}

func TestSetupLinkExpires(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	link, err := d.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if open, err := d.CheckSetup(t.Context(), link); err != nil || !open {
		t.Errorf("a new setup link does not open: %t, %v", open, err)
	}
	w := world{T: t, db: d, url: url}
	w.exec("update installation set setup_expires_at = setup_expires_at - $1::interval", db.SetupLinkLife)
	if open, err := d.CheckSetup(t.Context(), link); err != nil || open {
		t.Errorf("an expired setup link opens: %t, %v", open, err)
	}
}

func TestSetupsAtOnceByOneLinkMakeOneInstallation(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	link, err := d.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in := db.NewInstallation{
		Organization: "Loja", Email: "Ana@example.com", Name: "Ana Prado", PasswordHash: "a hash", Scopes: db.Scopes(),
		SetupToken: link, RequestID: "req-1",
	}
	var mu sync.Mutex
	var made []db.Installed
	var setups sync.WaitGroup
	for range 20 {
		setups.Go(func() {
			installed, err := d.SetUp(t.Context(), in)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made = append(made, installed)
			} else if !errors.Is(err, bus.ErrConflict) || installed != (db.Installed{}) {
				t.Errorf("SetUp() = %+v, %v, want it done or refused", installed, err)
			}
		})
	}
	setups.Wait()
	if len(made) != 1 {
		t.Fatalf("%d setups were done, want 1", len(made))
	}
	person, err := d.Person(t.Context(), made[0].UserID)
	want := db.Person{
		ID: made[0].UserID, Email: "ana@example.com", Name: "Ana Prado", SessionVersion: 1, Platform: db.PlatformFull,
		Memberships: []db.Membership{{OrgID: made[0].OrganizationID, Organization: "Loja", Timezone: "America/Sao_Paulo", Role: db.RoleAdmin}},
	}
	if diff := cmp.Diff(want, person); err != nil || diff != "" {
		t.Errorf("%v; the admin (-want +got):\n%s", err, diff)
	}
	w := world{T: t, db: d, url: url}
	if n := w.count(`select count(*) from audit_log
		 where actor_kind = 'user' and actor_id = $1 and actor_name = 'ana@example.com' and request_id = 'req-1'`, person.ID); n != 3 {
		t.Errorf("%d audit rows name who set up, want those of the organization, the user and the token", n)
	}
}

func TestSetupByALinkThatIsNotValidChangesNothing(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url}
	in := db.NewInstallation{Organization: "Loja", Email: "ana@example.com", PasswordHash: "a hash", Scopes: db.Scopes()}
	refuse := func(name, token string) {
		t.Helper()
		in.SetupToken = token
		if _, err := d.SetUp(t.Context(), in); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("a setup by a link that %s: %v, want not found", name, err)
		}
	}
	refuse("was never opened", "x")
	replaced, err := d.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link, err := d.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refuse("was replaced", replaced)
	refuse("is cut short", link[1:])
	w.exec("update installation set setup_expires_at = setup_expires_at - $1::interval", db.SetupLinkLife)
	refuse("has expired", link)
	if n := w.count("select (select count(*) from users) + (select count(*) from organizations) + (select count(*) from audit_log)"); n != 0 {
		t.Errorf("the refusals made %d rows", n)
	}
	if link, err = d.OpenSetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	in.SetupToken, in.Organization = link, ""
	if _, err := d.SetUp(t.Context(), in); err == nil {
		t.Error("an organization without a name is made")
	}
	in.Organization = "Loja"
	if _, err := d.SetUp(t.Context(), in); err != nil {
		t.Errorf("a refusal of what was typed used the link up: %v", err)
	}
	if _, err := d.SetUp(t.Context(), in); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a second setup by the link: %v, want already set up", err)
	}
}

func TestTokenEndsByRevocationAndByExpiry(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var revoked, expiring db.Token
	var revokedSecret, expiringSecret string
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		if revoked, revokedSecret, err = tx.CreateToken(t.Context(), db.NewToken{Name: "to be revoked", Scopes: []string{"crm:read"}}); err != nil {
			return err
		}
		expiring, expiringSecret, err = tx.CreateToken(t.Context(), db.NewToken{Name: "to expire", Scopes: []string{"crm:read"}, ExpiresIn: time.Hour})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{revokedSecret, expiringSecret} {
		if p, err := w.db.Authenticate(t.Context(), secret); err != nil || p.OrgID != w.org || !p.Has("crm:read") || p.Has("admin") {
			t.Errorf("Authenticate() = %+v, %v, want the organization's reader", p, err)
		}
	}
	err = w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.RevokeToken(t.Context(), revoked.ID) })
	if err != nil {
		t.Fatal(err)
	}
	w.exec("update api_tokens set expires_at = expires_at - interval '2 hours' where id = $1", expiring.ID)
	for name, secret := range map[string]string{
		"revoked": revokedSecret, "expired": expiringSecret, "unknown": revokedSecret[:len(revokedSecret)-1] + "A", "malformed": "dsk_x", "empty": "",
	} {
		if _, err := w.db.Authenticate(t.Context(), secret); !errors.Is(err, bus.ErrUnauthorized) {
			t.Errorf("a token that is %s: %v, want it refused", name, err)
		}
	}
	if n := w.count("select count(*) from api_tokens where position($1::bytea in token_hash) > 0 or prefix = $2", []byte(revokedSecret), revokedSecret); n != 0 {
		t.Error("the token itself is in the database")
	}
}

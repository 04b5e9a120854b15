package db_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// person makes a member of the organization and returns their e-mail address.
func (w world) person(role db.Role) string {
	w.Helper()
	email := strings.ReplaceAll(uuid.NewString(), "-", "") + "@example.com"
	w.add(w.org, email, role)
	return email
}

func (w world) add(org uuid.UUID, email string, role db.Role) uuid.UUID {
	w.Helper()
	user, _, err := w.db.AddMember(w.Context(), dbtest.Actor(), db.NewMember{OrgID: org, Email: email, Role: role, PasswordHash: "a hash"})
	if err != nil {
		w.Fatal(err)
	}
	return user
}

// lookUp reads the person with an e-mail address anew.
func (w world) lookUp(email string) db.Person {
	w.Helper()
	c, err := w.db.Credentials(w.Context(), email)
	if err != nil {
		w.Fatal(err)
	}
	p, err := w.db.Person(w.Context(), c.UserID)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func TestRolesHaveAnOrder(t *testing.T) {
	t.Parallel()
	for i, r := range db.Roles() {
		for j, other := range db.Roles() {
			if got, want := r.AtLeast(other), i >= j; got != want {
				t.Errorf("%s.AtLeast(%s) = %t, want %t", r, other, got, want)
			}
		}
		for _, nothing := range []db.Role{"", "owner", "Admin"} {
			if nothing.AtLeast(r) || nothing.AtLeast("") {
				t.Errorf("%q is at least %s", nothing, r)
			}
		}
	}
}

func TestPersonIsNobodyOrWhoTheyAreNow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.db.Person(t.Context(), uuid.New()); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Person() of nobody: %v, want not found", err)
	}
	first, err := w.db.CreateOrganization(t.Context(), dbtest.Actor(), "Aa "+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	email := strings.ToUpper(w.person(db.RoleAgent))
	user := w.add(first.ID, email, db.RoleAdmin)
	w.exec("update organizations set timezone = 'America/Manaus' where id = $1", first.ID)
	w.exec("insert into platform_admins (user_id, scope) values ($1, 'support_readonly')", user)
	want := db.Person{
		ID: user, Email: strings.ToLower(email), SessionVersion: 1, Platform: db.PlatformReadOnly,
		Memberships: []db.Membership{
			{OrgID: first.ID, Organization: first.Name, Timezone: "America/Manaus", Role: db.RoleAdmin},
			{OrgID: w.org, Organization: t.Name(), Timezone: "America/Sao_Paulo", Role: db.RoleAgent},
		},
	}
	if diff := cmp.Diff(want, w.lookUp(email)); diff != "" {
		t.Errorf("person (-want +got):\n%s", diff)
	}

	if _, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, email); err != nil {
		t.Fatal(err)
	}
	w.exec("update platform_admins set revoked_at = clock_timestamp() where user_id = $1", user)
	want.Memberships, want.Platform = want.Memberships[:1], db.PlatformNone
	if diff := cmp.Diff(want, w.lookUp(email)); diff != "" {
		t.Errorf("person whose rights were revoked (-want +got):\n%s", diff)
	}
	if _, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, email); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("revoking again: %v, want not found", err)
	}
	w.add(w.org, email, db.RoleViewer)
	if got := w.lookUp(email).Memberships; len(got) != 2 || got[1].Role != db.RoleViewer {
		t.Errorf("memberships after coming back = %+v, want both", got)
	}
}

func TestAddingAMemberMakesAUserOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Org(t, w.db)
	email := w.person(db.RoleAdmin)
	if _, created, err := w.db.AddMember(t.Context(), dbtest.Actor(), db.NewMember{OrgID: other, Email: email, Role: db.RoleAgent}); err != nil || created {
		t.Errorf("AddMember() of a user who exists = created %t, %v", created, err)
	}
	if c, err := w.db.Credentials(t.Context(), email); err != nil || c.PasswordHash != "a hash" || c.SessionVersion != 1 {
		t.Errorf("the second membership changed the credentials: %+v, %v", c, err)
	}
	cases := map[string]struct {
		member db.NewMember
		field  string
		is     error
	}{
		"a member already":        {db.NewMember{OrgID: w.org, Email: strings.ToUpper(email), Role: db.RoleViewer}, "", bus.ErrConflict},
		"an unknown organization": {db.NewMember{OrgID: uuid.New(), Email: email, Role: db.RoleViewer}, "", bus.ErrNotFound},
		"a new user, no password": {db.NewMember{OrgID: w.org, Email: "new." + email, Role: db.RoleViewer}, "password", nil},
		"an unknown role":         {db.NewMember{OrgID: w.org, Email: "new." + email, Role: "owner", PasswordHash: "a hash"}, "role", nil},
		"no address":              {db.NewMember{OrgID: w.org, Email: "Ana <a@example.com>", Role: db.RoleViewer, PasswordHash: "a hash"}, "email", nil},
		"a long name":             {db.NewMember{OrgID: w.org, Email: "new." + email, Role: db.RoleViewer, PasswordHash: "a hash", Name: strings.Repeat("é", 201)}, "name", nil},
		"a name with NUL":         {db.NewMember{OrgID: w.org, Email: "new." + email, Role: db.RoleViewer, PasswordHash: "a hash", Name: "a\x00"}, "name", nil},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := w.db.AddMember(t.Context(), dbtest.Actor(), tt.member)
			field, _ := errors.AsType[*bus.FieldError](err)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || tt.field != "" && (field == nil || field.Field != tt.field) {
				t.Errorf("got %v, want a refusal (%s, %v)", err, tt.field, tt.is)
			}
			if _, err := w.db.Credentials(t.Context(), "new."+email); !errors.Is(err, bus.ErrNotFound) {
				t.Errorf("the refusal made a user: %v", err)
			}
		})
	}
	if got := w.lookUp(email).Memberships; len(got) != 2 {
		t.Errorf("memberships = %+v, want both", got)
	}
}

func TestAddingOnePersonTwentyTimesAtOnceMakesOneMember(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := "new." + w.person(db.RoleAdmin)
	var mu sync.Mutex
	var done int
	var adds sync.WaitGroup
	for range 20 {
		adds.Go(func() {
			_, _, err := w.db.AddMember(t.Context(), dbtest.Actor(), db.NewMember{OrgID: w.org, Email: email, Role: db.RoleAgent, PasswordHash: "a hash"})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done++
			} else if !errors.Is(err, bus.ErrConflict) {
				t.Error(err)
			}
		})
	}
	adds.Wait()
	if done != 1 || len(w.lookUp(email).Memberships) != 1 {
		t.Errorf("%d were done and the person has %d memberships, want one", done, len(w.lookUp(email).Memberships))
	}
}

func TestLastAdminStaysOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	admin := w.person(db.RoleAdmin)
	w.person(db.RoleManager)
	gone := w.person(db.RoleAdmin)
	elsewhere := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	elsewhere.person(db.RoleAdmin)
	if _, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, gone); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.SetRole(t.Context(), dbtest.Actor(), w.org, admin, db.RoleManager); !errors.Is(err, db.ErrLastAdmin) || !errors.Is(err, bus.ErrConflict) {
		t.Errorf("demoting the last admin: %v, want a refusal", err)
	}
	if _, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, admin); !errors.Is(err, db.ErrLastAdmin) {
		t.Errorf("revoking the last admin: %v, want a refusal", err)
	}
	if _, err := w.db.SetRole(t.Context(), dbtest.Actor(), w.org, admin, db.RoleAdmin); err != nil {
		t.Errorf("the last admin cannot stay one: %v", err)
	}
	if m := w.lookUp(admin).Memberships; len(m) != 1 || m[0].Role != db.RoleAdmin {
		t.Errorf("the last admin is now %+v", m)
	}
}

func TestAdminsWhoLeaveAtOnceLeaveOneBehind(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var emails []string
	for range 20 {
		emails = append(emails, w.person(db.RoleAdmin))
	}
	var leaving sync.WaitGroup
	for i, email := range emails {
		leaving.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, email)
			} else {
				_, err = w.db.SetRole(t.Context(), dbtest.Actor(), w.org, email, db.RoleViewer)
			}
			if err != nil && !errors.Is(err, db.ErrLastAdmin) {
				t.Error(err)
			}
		})
	}
	leaving.Wait()
	if n := w.count("select count(*) from user_organizations where organization_id = $1 and role = 'admin' and revoked_at is null", w.org); n != 1 {
		t.Errorf("%d admins are left, want 1", n)
	}
}

func TestChangesOfPeopleAreRefusedForWhoIsNotThere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.person(db.RoleAdmin)
	elsewhere := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	elsewhere.person(db.RoleAdmin)
	stranger := elsewhere.person(db.RoleAgent)
	for name, change := range map[string]func() error{
		"the role of another organization's": func() error {
			_, err := w.db.SetRole(t.Context(), dbtest.Actor(), w.org, stranger, db.RoleAdmin)
			return err
		},
		"the place of another organization's": func() error {
			_, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, stranger)
			return err
		},
		"the place in no organization": func() error {
			_, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), uuid.New(), stranger)
			return err
		},
		"nobody's password": func() error {
			_, err := w.db.SetPassword(t.Context(), dbtest.Actor(), "nobody@example.com", "another hash")
			return err
		},
	} {
		if err := change(); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("changing %s: %v, want not found", name, err)
		}
	}
	if m := w.lookUp(stranger).Memberships; len(m) != 1 || m[0].Role != db.RoleAgent {
		t.Errorf("the other organization's member is now %+v", m)
	}
	if _, err := w.db.SetRole(t.Context(), dbtest.Actor(), elsewhere.org, stranger, "owner"); err == nil {
		t.Error("an unknown role is set")
	}
}

func TestAnotherPasswordRaisesTheSessionVersion(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email, other := w.person(db.RoleAdmin), w.person(db.RoleAdmin)
	for range 2 {
		if _, err := w.db.SetPassword(t.Context(), dbtest.Actor(), strings.ToUpper(email), "another hash"); err != nil {
			t.Fatal(err)
		}
	}
	c, err := w.db.Credentials(t.Context(), email)
	if err != nil || c.PasswordHash != "another hash" || c.SessionVersion != 3 || w.lookUp(email).SessionVersion != 3 {
		t.Errorf("Credentials() = %+v, %v, want the new hash and version 3", c, err)
	}
	if c, err := w.db.Credentials(t.Context(), other); err != nil || c.PasswordHash != "a hash" || c.SessionVersion != 1 {
		t.Errorf("the other person's are %+v, %v, want them unchanged", c, err)
	}
}

func TestMembersAreListedOnceForEachPlace(t *testing.T) {
	t.Parallel()
	w := alone(t)
	other := dbtest.Org(t, w.db)
	ana := w.add(w.org, "ana@example.com", db.RoleAdmin)
	w.add(other, "ana@example.com", db.RoleViewer)
	w.add(other, "bia@example.com", db.RoleAdmin)
	w.add(w.org, "caio@example.com", db.RoleAgent)
	if _, err := w.db.RevokeMember(t.Context(), dbtest.Actor(), w.org, "caio@example.com"); err != nil {
		t.Fatal(err)
	}
	w.exec("insert into platform_admins (user_id) values ($1)", ana)
	lines := func(f db.MemberFilter) (lines []string) {
		members, err := w.db.Members(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			name, _, _ := strings.Cut(m.Email, "@")
			place := map[uuid.UUID]string{w.org: "first", other: "second"}[m.OrgID.UUID]
			lines = append(lines, strings.Join([]string{name, place, string(m.Role), string(m.Platform)}, " "))
		}
		return lines
	}
	cases := map[string]struct {
		filter db.MemberFilter
		want   []string
	}{
		"all":                {db.MemberFilter{}, []string{"ana first admin full", "ana second viewer full", "bia second admin ", "caio   "}},
		"of an organization": {db.MemberFilter{OrgID: uuid.NullUUID{UUID: other, Valid: true}}, []string{"ana second viewer full", "bia second admin "}},
		"of nobody":          {db.MemberFilter{OrgID: uuid.NullUUID{UUID: uuid.New(), Valid: true}}, nil},
		"at most":            {db.MemberFilter{Limit: 1}, []string{"ana first admin full"}},
	}
	for name, tt := range cases {
		if diff := cmp.Diff(tt.want, lines(tt.filter)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestChangesOfPeopleAreAudited(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.person(db.RoleAdmin)
	actor := db.Actor{Kind: db.ActorCLI, Name: "ops"}
	email := "new." + w.person(db.RoleAdmin)
	user, _, err := w.db.AddMember(t.Context(), actor, db.NewMember{OrgID: w.org, Email: email, Role: db.RoleAgent, PasswordHash: "a hash"})
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func() (uuid.UUID, error){
		func() (uuid.UUID, error) { return w.db.SetRole(t.Context(), actor, w.org, email, db.RoleManager) },
		func() (uuid.UUID, error) { return w.db.SetPassword(t.Context(), actor, email, "another hash") },
		func() (uuid.UUID, error) { return w.db.RevokeMember(t.Context(), actor, w.org, email) },
	} {
		if got, err := change(); err != nil || got != user {
			t.Errorf("changed %s, %v, want %s", got, err, user)
		}
	}
	got := w.text(`
		select string_agg(concat_ws(' ', action, actor_kind, actor_name, metadata, (organization_id = $2)::text), '; ' order by id)
		  from audit_log where resource_type = 'user' and resource_id = $1`, user, w.org)
	want := strings.Join([]string{
		`user.created cli ops {} true`, `member.added cli ops {"role": "agent"} true`,
		`member.role_changed cli ops {"to": "manager", "from": "agent"} true`,
		`user.password_changed cli ops {}`, `member.revoked cli ops {"role": "manager"} true`,
	}, "; ")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

package db

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// Role is what a person may do in one organization: viewer < agent < manager < admin.
type Role string

// The roles.
const (
	RoleViewer  Role = "viewer"
	RoleAgent   Role = "agent"
	RoleManager Role = "manager"
	RoleAdmin   Role = "admin"
)

// Roles returns every role, the least first.
func Roles() []Role { return []Role{RoleViewer, RoleAgent, RoleManager, RoleAdmin} }

// AtLeast reports whether r allows what other does. A role that is empty or
// unknown is below all.
func (r Role) AtLeast(other Role) bool {
	rank := slices.Index(Roles(), r)
	return rank >= 0 && rank >= slices.Index(Roles(), other)
}

func (r Role) check() error {
	if !slices.Contains(Roles(), r) {
		return bus.Invalid("role", "must be one of viewer, agent, manager, admin")
	}
	return nil
}

// PlatformScope is what a person may do in every organization.
type PlatformScope string

// The platform scopes.
const (
	PlatformNone     PlatformScope = ""
	PlatformFull     PlatformScope = "full"
	PlatformReadOnly PlatformScope = "support_readonly"
)

// Membership is a person's place in one organization that is not revoked.
type Membership struct {
	OrgID        uuid.UUID
	Organization string
	Timezone     string
	Role         Role
}

// Person is a user as of now. It is read anew for every request, so that a
// revoked right ends at once.
type Person struct {
	ID             uuid.UUID
	Email          string
	Name           string
	SessionVersion int
	Memberships    []Membership // by name of the organization
	Platform       PlatformScope
}

const personSQL = `
	select u.id, u.email, u.name, u.session_version,
	       coalesce((
	           select jsonb_agg(jsonb_build_object(
	                      'OrgID', o.id, 'Organization', o.name, 'Timezone', o.timezone, 'Role', m.role) order by o.name, o.id)
	             from user_organizations m
	             join organizations o on o.id = m.organization_id
	            where m.user_id = u.id and m.revoked_at is null
	       ), '[]') as memberships,
	       coalesce((select scope from platform_admins where user_id = u.id and revoked_at is null), '') as platform
	  from users u
	 where u.id = @id`

// Person returns a user, or bus.ErrNotFound.
func (d *DB) Person(ctx context.Context, id uuid.UUID) (Person, error) {
	p, err := one[Person](ctx, d.pool, personSQL, named{"id": id})
	return p, wrap("load person", err)
}

// cleanEmail checks an e-mail address and returns it as it is kept and looked
// for: in lower case, since people write theirs in any.
func cleanEmail(email string) (string, error) {
	if addr, err := mail.ParseAddress(email); err != nil || addr.Address != email || len(email) > 254 {
		return "", bus.Invalid("email", "must be an e-mail address of at most 254 characters")
	}
	return strings.ToLower(email), nil
}

const insertUserSQL = `
	insert into users (email, name, password_hash) values (@email, @name, @password_hash) returning id`

// insertUser makes a user with an e-mail address that cleanEmail returned.
func insertUser(ctx context.Context, tx pgx.Tx, email, name, passwordHash string) (uuid.UUID, error) {
	if utf8.RuneCountInString(name) > 200 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return uuid.Nil, bus.Invalid("name", "must have at most 200 characters")
	}
	var id uuid.UUID
	err := tx.QueryRow(ctx, insertUserSQL, named{"email": email, "name": name, "password_hash": passwordHash}).Scan(&id)
	return id, wrap("create user", err)
}

func auditUser(ctx context.Context, tx pgx.Tx, org uuid.NullUUID, actor Actor, action string, user uuid.UUID, metadata map[string]any) error {
	return insertAudit(ctx, tx, org, actor, auditEntry{action: action, resourceType: "user", resourceID: user, metadata: metadata})
}

// ErrLastAdmin is the refusal to leave an organization without an admin.
var ErrLastAdmin = fmt.Errorf("the organization's last admin must stay one: %w", bus.ErrConflict)

// Member is a user with a place in an organization, or without any.
type Member struct {
	UserID       uuid.UUID
	Email        string
	Name         string
	OrgID        uuid.NullUUID
	Organization string
	Role         Role
	Platform     PlatformScope
}

// MemberFilter narrows a list of members.
type MemberFilter struct {
	OrgID uuid.NullUUID // only of this organization
	Limit int
}

const listMembersSQL = `
	select u.id as user_id, u.email, u.name, m.organization_id as org_id, coalesce(o.name, '') as organization,
	       coalesce(m.role, '') as role, coalesce(p.scope, '') as platform
	  from users u
	  left join user_organizations m on m.user_id = u.id and m.revoked_at is null
	  left join organizations o on o.id = m.organization_id
	  left join platform_admins p on p.user_id = u.id and p.revoked_at is null
	 where @org_id::uuid is null or m.organization_id = @org_id
	 order by lower(u.email), o.name, m.organization_id
	 limit @limit`

// Members lists users by e-mail address, once for each organization that they
// have a place in.
func (d *DB) Members(ctx context.Context, f MemberFilter) ([]Member, error) {
	list, err := collect[Member](ctx, d.pool, listMembersSQL, named{"org_id": f.OrgID, "limit": pageLimit(f.Limit)})
	return list, wrap("list members", err)
}

// NewMember describes a place in an organization to give to a user.
type NewMember struct {
	OrgID        uuid.UUID
	Email        string
	Role         Role
	Name         string // of a new user, for people; may be empty
	PasswordHash string // of a new user, what HashPassword returned
}

// lockMembersSQL lets one change of an organization's members at a time look who
// else is there. It does not hold up what only refers to the organization.
const lockMembersSQL = `select id from organizations where id = @org_id for no key update`

const findUserSQL = `select id from users where lower(email) = @email`

const insertMemberSQL = `
	insert into user_organizations (organization_id, user_id, role, accepted_at)
	values (@org_id, @user_id, @role, clock_timestamp())
	on conflict (organization_id, user_id) do update
	   set role = excluded.role, accepted_at = excluded.accepted_at, revoked_at = null
	 where user_organizations.revoked_at is not null
	returning user_id`

// AddMember gives the user with an e-mail address a place in an organization,
// and makes the user when there is none; the password of one who exists stays. It
// returns bus.ErrNotFound when there is no such organization and bus.ErrConflict
// when the user has a place there already.
func (d *DB) AddMember(ctx context.Context, actor Actor, n NewMember) (user uuid.UUID, created bool, err error) {
	email, err := cleanEmail(n.Email)
	if err == nil {
		err = n.Role.check()
	}
	if err != nil {
		return uuid.Nil, false, err
	}
	err = d.changeMembers(ctx, n.OrgID, func(tx pgx.Tx, org uuid.NullUUID) error {
		created = false
		err := translate(tx.QueryRow(ctx, findUserSQL, named{"email": email}).Scan(&user))
		switch {
		case errors.Is(err, bus.ErrNotFound) && n.PasswordHash == "":
			return bus.Invalid("password", "is required for a new user")
		case errors.Is(err, bus.ErrNotFound):
			created = true
			if user, err = insertUser(ctx, tx, email, n.Name, n.PasswordHash); err != nil {
				return err
			}
			if err := auditUser(ctx, tx, org, actor, "user.created", user, nil); err != nil {
				return err
			}
		case err != nil:
			return wrap("find user", err)
		}
		err = translate(tx.QueryRow(ctx, insertMemberSQL, named{"org_id": n.OrgID, "user_id": user, "role": n.Role}).Scan(&user))
		if errors.Is(err, bus.ErrNotFound) {
			return fmt.Errorf("the user is a member of the organization already: %w", bus.ErrConflict)
		}
		if err != nil {
			return wrap("add member", err)
		}
		return auditUser(ctx, tx, org, actor, "member.added", user, map[string]any{"role": n.Role})
	})
	return user, created, err
}

const updateRoleSQL = `
	update user_organizations set role = @role where organization_id = @org_id and user_id = @user_id`

// SetRole changes what a member may do. It returns bus.ErrNotFound when the
// e-mail address is no member's and ErrLastAdmin when nobody would be admin.
func (d *DB) SetRole(ctx context.Context, actor Actor, org uuid.UUID, email string, role Role) (user uuid.UUID, err error) {
	if err := role.check(); err != nil {
		return uuid.Nil, err
	}
	err = d.changeMembers(ctx, org, func(tx pgx.Tx, org uuid.NullUUID) error {
		m, err := findMember(ctx, tx, org, email)
		if err != nil {
			return err
		}
		if m.LastAdmin && role != RoleAdmin {
			return ErrLastAdmin
		}
		user = m.UserID
		if _, err := tx.Exec(ctx, updateRoleSQL, named{"org_id": org, "user_id": user, "role": role}); err != nil {
			return wrap("set role", err)
		}
		return auditUser(ctx, tx, org, actor, "member.role_changed", user, map[string]any{"from": m.Role, "to": role})
	})
	return user, err
}

const revokeMemberSQL = `
	update user_organizations set revoked_at = clock_timestamp() where organization_id = @org_id and user_id = @user_id`

// RevokeMember ends a user's place in an organization. It returns
// bus.ErrNotFound when the e-mail address is no member's and ErrLastAdmin when
// nobody would be admin.
func (d *DB) RevokeMember(ctx context.Context, actor Actor, org uuid.UUID, email string) (user uuid.UUID, err error) {
	err = d.changeMembers(ctx, org, func(tx pgx.Tx, org uuid.NullUUID) error {
		m, err := findMember(ctx, tx, org, email)
		if err != nil {
			return err
		}
		if m.LastAdmin {
			return ErrLastAdmin
		}
		user = m.UserID
		if _, err := tx.Exec(ctx, revokeMemberSQL, named{"org_id": org, "user_id": user}); err != nil {
			return wrap("revoke member", err)
		}
		return auditUser(ctx, tx, org, actor, "member.revoked", user, map[string]any{"role": m.Role})
	})
	return user, err
}

// changeMembers runs fn while no other change of the organization's members runs.
func (d *DB) changeMembers(ctx context.Context, org uuid.UUID, fn func(tx pgx.Tx, org uuid.NullUUID) error) error {
	return translate(d.inTx(ctx, func(tx pgx.Tx) error {
		locked := uuid.NullUUID{}
		if err := tx.QueryRow(ctx, lockMembersSQL, named{"org_id": org}).Scan(&locked); err != nil {
			return wrap("find organization", err)
		}
		return fn(tx, locked)
	}))
}

// member is a member as changeMembers finds it.
type member struct {
	UserID    uuid.UUID
	Role      Role
	LastAdmin bool
}

const findMemberSQL = `
	select m.user_id, m.role,
	       m.role = 'admin' and not exists (
	           select from user_organizations other
	            where other.organization_id = @org_id and other.user_id <> m.user_id
	              and other.role = 'admin' and other.revoked_at is null
	       ) as last_admin
	  from user_organizations m
	  join users u on u.id = m.user_id
	 where m.organization_id = @org_id and m.revoked_at is null and lower(u.email) = @email`

func findMember(ctx context.Context, tx pgx.Tx, org uuid.NullUUID, email string) (member, error) {
	email, err := cleanEmail(email)
	if err != nil {
		return member{}, err
	}
	m, err := one[member](ctx, tx, findMemberSQL, named{"org_id": org, "email": email})
	return m, wrap("find member", err)
}

const updatePasswordSQL = `
	update users set password_hash = @password_hash, session_version = session_version + 1
	 where lower(email) = @email
	returning id`

// SetPassword gives a user another password and ends all their sessions. It
// returns bus.ErrNotFound when the e-mail address is nobody's.
func (d *DB) SetPassword(ctx context.Context, actor Actor, email, passwordHash string) (user uuid.UUID, err error) {
	email, err = cleanEmail(email)
	if err != nil {
		return uuid.Nil, err
	}
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, updatePasswordSQL, named{"email": email, "password_hash": passwordHash}).Scan(&user); err != nil {
			return wrap("set password", err)
		}
		return auditUser(ctx, tx, uuid.NullUUID{}, actor, "user.password_changed", user, nil)
	})
	return user, translate(err)
}

package db

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

// knownContact is a contact that one of a person's names leads to.
type knownContact struct {
	ID          uuid.UUID
	Name        *string
	PhoneNumber *string
	WALID       *string `db:"wa_lid"`
}

// A phone leads to a contact under each of its forms, the canonical one first;
// old Brazilian numbers are stored with or without the ninth digit.
const findContactsSQL = `
	select id, name, phone_number, wa_lid
	  from contacts
	 where organization_id = @org_id
	   and is_merged_into is null
	   and (phone_number = any(@phones::text[]) or wa_lid = nullif(@lid, ''))
	 order by array_position(@phones::text[], phone_number) nulls last
	   for update`

const insertContactSQL = `
	insert into contacts (organization_id, name, phone_number, wa_lid, last_activity_at)
	values (@org_id, nullif(@name, ''), nullif(@phone, ''), nullif(@lid, ''), clock_timestamp())
	returning id`

const learnContactSQL = `
	update contacts
	   set name = coalesce(name, nullif(@name, '')),
	       phone_number = coalesce(phone_number, nullif(@phone, '')),
	       wa_lid = coalesce(wa_lid, nullif(@lid, '')),
	       last_activity_at = clock_timestamp()
	 where organization_id = @org_id and id = @id`

// contact returns the contact that a chat is with. It makes one for a person who
// is new, and joins two that turn out to be one person.
func (in *ingest) contact(ctx context.Context, who waha.Identity, pushName string) (uuid.UUID, error) {
	phones := waha.PhoneVariants(who.Phone)
	known, err := collect[knownContact](ctx, in.tx, findContactsSQL, named{"org_id": in.org, "phones": orEmpty(phones), "lid": who.LID})
	if err != nil {
		return uuid.Nil, wrap("find contact", err)
	}
	var phone string
	if len(phones) > 0 {
		phone = phones[0]
	}
	if len(known) == 0 {
		return in.newContact(ctx, pushName, phone, who.LID)
	}
	contact := known[0]
	for _, other := range known[1:] {
		// What another contact keeps cannot be learned.
		if other.PhoneNumber != nil && *other.PhoneNumber == phone {
			phone = ""
		}
		if other.PhoneNumber != nil && other.WALID != nil && *other.WALID == who.LID {
			who.LID = ""
		}
		// Two phone contacts are the two forms of one number, which people may
		// have stored apart on purpose. Only a contact without a phone is absorbed.
		if other.PhoneNumber == nil {
			if err := in.mergeContacts(ctx, contact, other); err != nil {
				return uuid.Nil, err
			}
		}
	}
	_, err = in.tx.Exec(ctx, learnContactSQL, named{"org_id": in.org, "id": contact.ID, "name": pushName, "phone": phone, "lid": who.LID})
	return contact.ID, wrap("update contact", err)
}

func (in *ingest) newContact(ctx context.Context, name, phone, lid string) (uuid.UUID, error) {
	var id uuid.UUID
	err := in.tx.QueryRow(ctx, insertContactSQL, named{"org_id": in.org, "name": name, "phone": phone, "lid": lid}).Scan(&id)
	if err != nil {
		return uuid.Nil, wrap("create contact", err)
	}
	payload := map[string]any{"contact_id": id, "source": "whatsapp"}
	for key, value := range map[string]string{"phone": phone, "name": name} {
		if value != "" {
			payload[key] = value
		}
	}
	return id, in.emit(ctx, bus.ContactCreated, "contact", id, payload)
}

// The absorbed contact gives up its LID. Where both have a conversation on a
// channel the messages and what is unread move, and the absorbed one's
// conversation stays, empty.
const mergeContactsSQL = `
	with absorbed as (
	    update contacts
	       set is_merged_into = @into_id, merged_at = clock_timestamp(), wa_lid = null
	     where organization_id = @org_id and id = @from_id
	), twins as (
	    select f.id as from_id, i.id as into_id
	      from conversations f
	      join conversations i on i.organization_id = f.organization_id and i.channel_session_id = f.channel_session_id
	     where f.organization_id = @org_id and f.contact_id = @from_id and i.contact_id = @into_id
	), moved as (
	    update messages m
	       set contact_id = @into_id, conversation_id = coalesce((select t.into_id from twins t where t.from_id = m.conversation_id), m.conversation_id)
	     where m.organization_id = @org_id and m.contact_id = @from_id
	), summed as (
	    update conversations i
	       set unread_count = i.unread_count + f.unread_count,
	           last_message_preview = case when f.last_message_at > coalesce(i.last_message_at, '-infinity') then f.last_message_preview else i.last_message_preview end,
	           last_message_at = greatest(i.last_message_at, f.last_message_at),
	           last_inbound_at = greatest(i.last_inbound_at, f.last_inbound_at),
	           last_outbound_at = greatest(i.last_outbound_at, f.last_outbound_at)
	      from twins t
	      join conversations f on f.id = t.from_id
	     where i.id = t.into_id
	), emptied as (
	    update conversations
	       set unread_count = 0, last_message_preview = null
	     where id in (select from_id from twins)
	)
	update conversations c
	   set contact_id = @into_id
	 where c.organization_id = @org_id and c.contact_id = @from_id and c.id not in (select from_id from twins)`

func (in *ingest) mergeContacts(ctx context.Context, into, from knownContact) error {
	_, err := in.tx.Exec(ctx, mergeContactsSQL, named{"org_id": in.org, "into_id": into.ID, "from_id": from.ID})
	if err != nil {
		return wrap("merge contacts", err)
	}
	fields := []string{"wa_lid"}
	if into.Name == nil && from.Name != nil {
		fields = slices.Insert(fields, 0, "name")
		if _, err := in.tx.Exec(ctx, learnContactSQL, named{"org_id": in.org, "id": into.ID, "name": *from.Name, "phone": "", "lid": ""}); err != nil {
			return wrap("merge contacts", err)
		}
	}
	return in.emit(ctx, bus.ContactMerged, "contact", into.ID, map[string]any{
		"from_contact_id": from.ID, "into_contact_id": into.ID, "merged_fields": fields,
	})
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

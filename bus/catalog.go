package bus

import (
	"slices"
	"strings"
)

// Types that deskcomm itself emits or that the catalogue reserves.
const (
	MessageReceived  Type = "message.received"
	MessageSent      Type = "message.sent"
	MessageDelivered Type = "message.delivered"
	MessageRead      Type = "message.read"
	MessageFailed    Type = "message.failed"

	ContactCreated Type = "contact.created"
	ContactMerged  Type = "contact.merged"

	ConversationOpened   Type = "conversation.opened"
	ConversationReopened Type = "conversation.reopened"

	SystemSessionChanged Type = "system.session_changed"

	WhatsAppChatIDNotRecognized Type = "whatsapp.chat_id_not_recognized"
)

// Catalogue returns every type with a meaning of its own, grouped by what they
// are about. Anything else is either custom.* or refused.
func Catalogue() []Type {
	return []Type{
		"lead.created", "lead.updated", "lead.stage_changed", "lead.tag_added", "lead.won", "lead.lost", "lead.reopened",
		"lead.assigned", "lead.deleted", "lead.bulk_assigned", "lead.bulk_tagged", "lead.bulk_deleted",
		"lead_activity.recorded",
		ContactCreated, "contact.updated", "contact.tag_added", ContactMerged, "contact.blocked", "contact.anonymized",
		MessageReceived, "message.queued", "message.send_requested", "message.sending", "message.outbound", MessageSent,
		MessageDelivered, MessageRead, MessageFailed,
		ConversationOpened, "conversation.assigned", "conversation.claimed", "conversation.transferred",
		"conversation.resolved", ConversationReopened, "conversation.routing_requested",
		"ai.responded", "ai.handoff_triggered", "ai.handoff_resolved", "ai.sentiment_alert", "ai.budget_warning",
		"ai.budget_throttled", "ai.case_opened", "ai.case_closed", "ai_agent.dispatch_requested",
		"media.persist_requested", "media.derive_requested",
		"nuvemshop.order_created", "nuvemshop.order_updated", "nuvemshop.order_edited", "nuvemshop.order_pending",
		"nuvemshop.order_paid", "nuvemshop.order_voided", "nuvemshop.order_packed", "nuvemshop.order_unpacked",
		"nuvemshop.order_fulfilled", "nuvemshop.order_cancelled", "nuvemshop.cart_abandoned",
		"nuvemshop.product_created", "nuvemshop.product_updated", "nuvemshop.product_deleted", "nuvemshop.product_synced",
		"nuvemshop.customer_created", "nuvemshop.customer_updated", "nuvemshop.customer_deleted",
		"nuvemshop.customer_redact_received",
		"knowledge_source.updated",
		"lgpd.consent_changed", "lgpd.data_request_received", "lgpd.redact_received", "lgpd.export_generated",
		"lgpd.export_delivered", "lgpd.redact_applied", "lgpd.redact_failed",
		"channel_session.status_changed",
		SystemSessionChanged, "system.contact_blocked_by_stop", "system.send_blocked", "system.window_24h_expired",
		WhatsAppChatIDNotRecognized, "whatsapp.conversation_mark_failed",
		"webhook.delivery_failed", "webhook.subscription_disabled",
		"tenant.onboarded", "tenant.suspended", "tenant.reactivated", "org.updated", "user.profile_updated", "incident.resolved",
	}
}

// Known reports whether t may be emitted at all: a type of the catalogue, or an
// integrator's own custom.*.
func Known(t Type) bool {
	return IsCustom(t) || slices.Contains(Catalogue(), t)
}

// CheckType refuses a type that may not be emitted at all.
func CheckType(field string, t Type) error {
	if Known(t) {
		return nil
	}
	return Invalid(field, "must be a type of the catalogue, or custom.<name> in lower snake case")
}

// IsCustom reports whether t is an integrator's own type.
func IsCustom(t Type) bool { return t.Valid() && strings.HasPrefix(string(t), "custom.") }

// CheckPattern refuses what a subscription cannot subscribe to. Accepted are a
// known type, all types of one entity (lead.*), and all types (*).
func CheckPattern(field, pattern string) error {
	if pattern == "*" || Known(Type(pattern)) {
		return nil
	}
	if entity, ok := strings.CutSuffix(pattern, ".*"); ok {
		for _, c := range Catalogue() {
			if strings.HasPrefix(string(c), entity+".") {
				return nil
			}
		}
		if entity == "custom" {
			return nil
		}
	}
	return Invalid(field, "must be a type of the catalogue, custom.<name>, <entity>.* or *")
}

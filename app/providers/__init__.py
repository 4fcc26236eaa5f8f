"""Everyone who can send to us: the registry of providers."""

from collections.abc import Mapping

from app.providers.base import Provider
from app.providers.github import GitHubProvider
from app.providers.standardwebhooks import StandardWebhooksProvider
from app.providers.stripe import StripeProvider

PROVIDERS: Mapping[str, Provider] = {
    "github": GitHubProvider(),
    "standardwebhooks": StandardWebhooksProvider(),
    "stripe": StripeProvider(),
}

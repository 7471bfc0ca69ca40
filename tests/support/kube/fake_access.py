"""Who may do what on the API server of the tests: its roles and bindings, and tokens of service accounts."""

Objects = dict[tuple, dict]  # by (group, resource, namespace, name)


def allowed(objects: Objects, user: str, wanted: dict) -> bool:
    """Whether some binding lets `user` do what is `wanted`, resource attributes as in a SubjectAccessReview."""
    if not user:
        return True
    where = wanted.get("nonResourceAttributes")
    full = "" if where else wanted["resource"] + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
    for (_, kind, ns, _), bound in list(objects.items()):
        if kind not in ("clusterrolebindings", "rolebindings"):
            continue
        if ns and ns != wanted.get("namespace"):
            continue
        subjects = [f"system:serviceaccount:{s.get('namespace')}:{s['name']}" for s in bound["subjects"]]
        ref = bound["roleRef"]
        role = objects.get(
            ("rbac.authorization.k8s.io", f"{ref['kind'].lower()}s", ns if ref["kind"] == "Role" else "", ref["name"])
        )
        for rule in (role or {}).get("rules") or []:
            if where or "resources" not in rule:
                urls = rule.get("nonResourceURLs", ()) if where else ()
                if user in subjects and where and where["path"] in urls and where["verb"] in rule["verbs"]:
                    return True
                continue
            hit = (
                wanted["verb"] in rule["verbs"]
                and full in rule["resources"]
                and wanted.get("group", "") in rule["apiGroups"]
            )
            named = wanted.get("name") in rule.get("resourceNames", [wanted.get("name")])
            if hit and user in subjects and named:
                return True
    return False


def review(objects: Objects, token: str) -> dict:
    """The status of a TokenReview: whose token it is."""
    kind, _, rest = token.partition(".")
    namespace, _, name = rest.partition(".")
    if kind != "token-of" or ("", "serviceaccounts", namespace, name) not in objects:
        return {"error": "invalid bearer token"}
    return {"authenticated": True, "user": {"username": f"system:serviceaccount:{namespace}:{name}"}}

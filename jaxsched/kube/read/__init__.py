"""From the API's objects to what a plan is made of: nodes, pods, gangs, volumes, one snapshot of them."""

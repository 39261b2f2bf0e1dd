"""How a member comes by its claims, keeps them, works on them, and gives them back."""

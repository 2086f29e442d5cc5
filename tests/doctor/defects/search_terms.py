"""Write a product text that contains the terms that people search for."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("search-terms", description="Product texts with search terms.")


class Row(BaseModel):
    """One product, and a text by an expert."""

    product: str
    terms: list[str]
    text: Private[str]


PRODUCTS = {
    "a tent": ["light", "waterproof"], "a kettle": ["fast", "quiet"], "a desk": ["oak", "wide"], "a lamp": ["warm", "dimmable"],
    "a bag": ["leather", "large"], "a knife": ["sharp", "steel"],
}  # fmt: skip
ROWS = [
    Row(product=product, terms=terms, text=f"We sell {product} that is {terms[0]} and {terms[1]}.")
    for product, terms in PRODUCTS.items()
]


@app.environment("texts", tasks={"train": ROWS}, row=Row, max_steps=2)
class Texts:
    """Each term is worth a half."""

    def reset(self, task: Row) -> str:
        self.terms = task.terms
        return f"Write one sentence that sells {task.product}, with the terms {' and '.join(task.terms)}."

    @action(text=True, sample=lambda rng: f"It is {rng.choice(['light', 'fast', 'wide', 'new'])}.")
    def publish(self, text: str) -> Step:
        """Publish the text."""
        found = sum(text.lower().count(term) for term in self.terms)
        return Step("published", reward=0.5 * found, terminated=True)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the text of the expert."""
    return task.text
